// A GPU in host memory: streams are threads running their work in order and late, kernels are
// functions. Work is recorded when it is done, as on a GPU, never before.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "dataplane/cuda_driver.h"

namespace imagined {

using tasuki::dataplane::Address;
using tasuki::dataplane::CudaDriver;

inline std::atomic<bool>& broken() {
  static std::atomic<bool> is = false;
  return is;
}

// Events cannot be recorded.
inline std::atomic<bool>& eventless() {
  static std::atomic<bool> is = false;
  return is;
}

// Streams run none of their work.
inline std::atomic<bool>& stuck() {
  static std::atomic<bool> is = false;
  return is;
}

class Stream {
 public:
  Stream() : thread_([this] { run(); }) {}
  ~Stream() {
    {
      const std::scoped_lock lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void give(std::function<void()> work) {
    {
      const std::scoped_lock lock(mutex_);
      work_.push_back(std::move(work));
    }
    changed_.notify_all();
  }
  void synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return work_.empty(); });
  }

 private:
  void run() {
    std::mt19937 random(std::random_device{}());
    while (true) {
      std::function<void()> next;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stopping_ || !work_.empty(); });
        if (work_.empty()) return;
        next = work_.front();
      }
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
      while (stuck()) std::this_thread::sleep_for(std::chrono::microseconds(50));
      next();
      {
        const std::scoped_lock lock(mutex_);
        work_.pop_front();
      }
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool stopping_ = false;
  std::thread thread_;
};

struct Event {
  std::atomic<int> recorded = 0;
  std::atomic<int> passed = 0;
};

// Stand-in for a compiled kernel. The function gets its launch's grid and parameters in the
// stream's turn, and the size of each parameter in bytes.
struct Kernel {
  void (*function)(unsigned grid_x, unsigned grid_y, void** parameters);
  std::vector<std::size_t> sizes;

  std::uint64_t handle() const { return reinterpret_cast<std::uint64_t>(this); }
};

inline CudaDriver driver() {
  CudaDriver made{};
  made.init = [](unsigned) { return 0; };
  made.device_get = [](int* device, int ordinal) { return *device = ordinal, 0; };
  made.retain_context = [](void** context, int) { return *context = nullptr, 0; };
  made.push_context = [](void*) { return 0; };
  made.pop_context = [](void**) { return 0; };
  made.stream_create = [](void** stream, unsigned, int) { return *stream = new Stream, 0; };
  made.stream_synchronize = [](void* stream) {
    return static_cast<Stream*>(stream)->synchronize(), 0;
  };
  made.stream_destroy = [](void* stream) { return delete static_cast<Stream*>(stream), 0; };
  // A driver keeps a destroyed event for as long as a stream has it.
  made.event_create = [](void** event, unsigned) {
    return *event = new std::shared_ptr<Event>(std::make_shared<Event>()), 0;
  };
  made.event_record = [](void* event, void* stream) {
    if (eventless()) return 700;
    const std::shared_ptr<Event> own = *static_cast<std::shared_ptr<Event>*>(event);
    const int number = ++own->recorded;
    static_cast<Stream*>(stream)->give([own, number] { own->passed = number; });
    return 0;
  };
  made.event_query = [](void* event) {
    const Event* const own = static_cast<std::shared_ptr<Event>*>(event)->get();
    if (broken()) return 700;
    return own->passed >= own->recorded ? 0 : CudaDriver::kNotReady;
  };
  made.event_synchronize = [](void* event) {
    const Event* const own = static_cast<std::shared_ptr<Event>*>(event)->get();
    while (own->passed < own->recorded) {
      if (broken()) return 700;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    return 0;
  };
  made.event_destroy = [](void* event) {
    return delete static_cast<std::shared_ptr<Event>*>(event), 0;
  };
  made.host_allocate = [](void** memory, std::size_t bytes, unsigned) {
    return *memory = ::operator new(bytes), 0;
  };
  made.host_free = [](void* memory) { return ::operator delete(memory), 0; };
  made.allocate = [](Address* memory, std::size_t bytes) {
    return *memory = reinterpret_cast<Address>(::operator new(bytes)), 0;
  };
  made.free = [](Address memory) { return ::operator delete(reinterpret_cast<void*>(memory)), 0; };
  // Host memory is read in the stream's turn: an earlier change shows.
  made.copy_to_device = [](Address to, const void* from, std::size_t bytes, void* stream) {
    static_cast<Stream*>(stream)->give(
        [=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); });
    return 0;
  };
  made.copy_to_host = [](void* to, Address from, std::size_t bytes, void* stream) {
    static_cast<Stream*>(stream)->give(
        [=] { std::memcpy(to, reinterpret_cast<const void*>(from), bytes); });
    return 0;
  };
  made.launch = [](void* function, unsigned grid_x, unsigned grid_y, unsigned, unsigned, unsigned,
                   unsigned, unsigned, void* stream, void** parameters, void**) {
    const auto* const kernel = static_cast<const Kernel*>(function);
    std::vector<std::uint64_t> words;
    for (std::size_t index = 0; index < kernel->sizes.size(); ++index) {
      words.push_back(0);
      std::memcpy(&words.back(), parameters[index], kernel->sizes[index]);
    }
    static_cast<Stream*>(stream)->give([=]() mutable {
      std::vector<void*> pointers;
      for (std::uint64_t& word : words) pointers.push_back(&word);
      kernel->function(grid_x, grid_y, pointers.data());
    });
    return 0;
  };
  made.error_name = [](int, const char** name) { return *name = "CUDA_ERROR_IMAGINED", 0; };
  return made;
}

}  // namespace imagined
