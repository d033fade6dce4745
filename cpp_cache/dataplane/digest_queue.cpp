#include "dataplane/digest_queue.h"

#include <pthread.h>

#include <exception>
#include <span>
#include <utility>

namespace tasuki::dataplane {

namespace {

// Layer chunks per call. The first of them waits for the last.
constexpr std::size_t kMostAtOnce = 64;

}  // namespace

DigestQueue::DigestQueue(std::shared_ptr<GpuDigester> digester)
    : digester_(std::move(digester)), thread_([this] { run(); }) {
  pthread_setname_np(thread_.native_handle(), "tasuki-digests");
}

DigestQueue::~DigestQueue() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void DigestQueue::ring_at_answers(std::shared_ptr<const Bell> bell) {
  const std::scoped_lock lock(mutex_);
  bells_.push_back(std::move(bell));
}

void DigestQueue::ask(std::shared_ptr<AskedDigest> asked) {
  {
    const std::scoped_lock lock(mutex_);
    asked_.push_back(std::move(asked));
  }
  changed_.notify_one();
}

void DigestQueue::run() {
  while (true) {
    std::vector<std::shared_ptr<AskedDigest>> batch;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || !asked_.empty(); });
      if (asked_.empty()) return;
      if (asked_.size() <= kMostAtOnce) {
        batch.swap(asked_);
      } else {
        const auto end = asked_.begin() + kMostAtOnce;
        batch.assign(asked_.begin(), end);
        asked_.erase(asked_.begin(), end);
      }
    }
    answer(batch);
    const std::scoped_lock lock(mutex_);
    for (const auto& bell : bells_) bell->ring();
  }
}

void DigestQueue::answer(std::vector<std::shared_ptr<AskedDigest>>& batch) {
  std::vector<digest::WindowPlaces> windows;
  for (const auto& asked : batch) windows.push_back(asked->places);
  try {
    const std::vector<std::uint64_t> found = digester_->digest(windows);
    for (std::size_t index = 0; index < batch.size(); ++index) {
      batch[index]->value = found[index];
      batch[index]->done = true;
    }
  } catch (const std::exception& error) {
    if (batch.size() == 1) {
      batch.front()->why = error.what();
      batch.front()->done = true;
      return;
    }
    // A failure of one layer chunk affects no other.
    for (auto& asked : batch) {
      std::vector<std::shared_ptr<AskedDigest>> alone{asked};
      answer(alone);
    }
  }
}

}  // namespace tasuki::dataplane
