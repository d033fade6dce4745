#include "dataplane/stream_ticks.h"

#include <pthread.h>

#include <utility>

namespace tasuki::dataplane {

StreamTicks::StreamTicks(std::shared_ptr<const CudaContext> context,
                         std::shared_ptr<StepCounter> steps)
    : context_(std::move(context)), steps_(std::move(steps)), thread_([this] { run(); }) {
  pthread_setname_np(thread_.native_handle(), "tasuki-ticks");
}

StreamTicks::~StreamTicks() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
  try {
    const CudaContext::Current current(*context_);
    recorded_.clear();
    free_.clear();
  } catch (const CudaError&) {
    // A failed context has freed them.
  }
}

void StreamTicks::tick_behind(StreamHandle stream) { record(stream, What::kTick); }

void StreamTicks::end_behind(StreamHandle stream) { record(stream, What::kEnd); }

void StreamTicks::record(StreamHandle stream, What what) {
  std::unique_ptr<Event> event;
  {
    const std::scoped_lock lock(mutex_);
    if (failure_) throw CudaError("layers are not counted any more: " + *failure_);
    if (!free_.empty()) {
      event = std::move(free_.back());
      free_.pop_back();
    }
  }
  {
    const CudaContext::Current current(*context_);
    if (!event) event = std::make_unique<Event>(context_->driver());
    event->record(stream);
  }
  {
    const std::scoped_lock lock(mutex_);
    recorded_.push_back({std::move(event), what});
  }
  changed_.notify_one();
}

void StreamTicks::run() {
  try {
    const CudaContext::Current current(*context_);
    while (true) {
      Recorded next;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stopping_ || !recorded_.empty(); });
        if (stopping_) return;
        next = std::move(recorded_.front());
        recorded_.pop_front();
      }
      next.event->wait();
      if (next.what == What::kTick) {
        steps_->tick();
      } else {
        steps_->end_forward();
      }
      const std::scoped_lock lock(mutex_);
      free_.push_back(std::move(next.event));
    }
  } catch (const std::exception& error) {
    const std::scoped_lock lock(mutex_);
    failure_ = error.what();
  }
}

}  // namespace tasuki::dataplane
