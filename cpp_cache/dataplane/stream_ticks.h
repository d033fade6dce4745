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

// Owns a thread, which waits for the event behind each layer's writes and ticks, and the events:
// the forward's thread only records. Knows no layers. One thread calls, the one that launches; the
// thread here is the only one that ticks the counter.
// Invariant: the counter is ticked in the order of the calls, and after the work that was in the
// stream before each.
class StreamTicks {
 public:
  // Throws CudaError.
  StreamTicks(std::shared_ptr<const CudaContext> context, std::shared_ptr<StepCounter> steps);
  // What has not passed is not ticked any more.
  ~StreamTicks();
  StreamTicks(const StreamTicks&) = delete;
  StreamTicks& operator=(const StreamTicks&) = delete;

  // Once all that the stream has been given so far has ended: one tick, or the forward's end.
  // Throws CudaError, also where an earlier event failed.
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
