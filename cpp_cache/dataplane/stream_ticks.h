// Ticks a step counter when a GPU has written a layer's KV and state.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dataplane/cuda_objects.h"
#include "steps/step_counter.h"

namespace tasuki::dataplane {

// Owns a thread and events: the thread waits for the event behind each layer's writes and ticks;
// the forward's thread only records. Knows no layers. Only the launching thread calls; only the
// thread here ticks the counter. Invariant: ticks are in the order of the calls. Each comes after
// the work in the stream before its call.
class StreamTicks {
 public:
  // Throws CudaError.
  StreamTicks(std::shared_ptr<const CudaContext> context, std::shared_ptr<StepCounter> steps);
  // Events still in the stream are not ticked any more.
  ~StreamTicks();
  StreamTicks(const StreamTicks&) = delete;
  StreamTicks& operator=(const StreamTicks&) = delete;

  // Tick, or end the forward, after all work in the stream so far. Throws CudaError, also after a
  // failed earlier event.
  void tick_behind(StreamHandle stream);
  void end_behind(StreamHandle stream);

 private:
  enum class What { kTick, kEnd };
  struct Recorded {
    std::unique_ptr<Event> event;
    What what;
  };

  void record(StreamHandle stream, What what);
  void run();

  std::shared_ptr<const CudaContext> context_;
  std::shared_ptr<StepCounter> steps_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Recorded> recorded_;
  std::vector<std::unique_ptr<Event>> free_;
  std::optional<std::string> failure_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tasuki::dataplane
