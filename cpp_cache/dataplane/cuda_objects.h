// The data plane's objects on a GPU, freed by their owners. REQUIRES: their context is current when
// they are made, used and freed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "dataplane/cuda_driver.h"

namespace tasuki::dataplane {

// A kernel compiled by Triton: its handle, and its launch parameters.
struct Kernel {
  std::uint64_t function;
  unsigned warps;
  unsigned shared_bytes;

  // The arguments in their order, constants left out. Throws CudaError.
  template <typename... Arguments>
  void launch(const CudaDriver& driver, unsigned programs_x, unsigned programs_y,
              StreamHandle stream, Arguments... arguments) const {
    // Triton's kernels take two more parameters: scratch memory, unused here.
    Address scratch = 0;
    Address profile = 0;
    std::array<void*, sizeof...(arguments) + 2> parameters{&arguments..., &scratch, &profile};
    constexpr unsigned kThreads = 32;
    driver.require(
        driver.launch(reinterpret_cast<void*>(function), programs_x, programs_y, 1,
                      kThreads * warps, 1, 1, shared_bytes, stream, parameters.data(), nullptr),
        "cuLaunchKernel");
  }
};

// A stream with high priority, never waiting for the default stream.
class Stream {
 public:
  explicit Stream(const CudaDriver& driver) : driver_(&driver) {
    constexpr unsigned kNonBlocking = 1;
    constexpr int kHighPriority = -1;
    driver.require(driver.stream_create(&handle_, kNonBlocking, kHighPriority),
                   "cuStreamCreateWithPriority");
  }
  ~Stream() { driver_->stream_destroy(handle_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  StreamHandle handle() const { return handle_; }
  void synchronize() const {
    driver_->require(driver_->stream_synchronize(handle_), "cuStreamSynchronize");
  }

 private:
  const CudaDriver* driver_;
  StreamHandle handle_ = nullptr;
};

class Event {
 public:
  // An event with sleeping waiters.
  explicit Event(const CudaDriver& driver) : driver_(&driver) {
    constexpr unsigned kBlockingWithoutTime = 1 | 2;
    driver.require(driver.event_create(&handle_, kBlockingWithoutTime), "cuEventCreate");
  }
  ~Event() { driver_->event_destroy(handle_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(StreamHandle stream) const {
    driver_->require(driver_->event_record(handle_, stream), "cuEventRecord");
  }
  // Return true if all work enqueued before record() has ended. Throws CudaError if it failed.
  bool passed() const {
    const int code = driver_->event_query(handle_);
    if (code == CudaDriver::kNotReady) return false;
    driver_->require(code, "cuEventQuery");
    return true;
  }
  void wait() const { driver_->require(driver_->event_synchronize(handle_), "cuEventSynchronize"); }

 private:
  const CudaDriver* driver_;
  EventHandle handle_ = nullptr;
};

// Words with one address for host and GPU.
class PinnedWords {
 public:
  PinnedWords(const CudaDriver& driver, std::size_t count) : driver_(&driver), count_(count) {
    constexpr unsigned kPortableMapped = 1 | 2;
    void* memory = nullptr;
    driver.require(driver.host_allocate(&memory, count * sizeof(std::int64_t), kPortableMapped),
                   "cuMemHostAlloc");
    words_ = static_cast<std::int64_t*>(memory);
  }
  ~PinnedWords() { driver_->host_free(words_); }
  PinnedWords(const PinnedWords&) = delete;
  PinnedWords& operator=(const PinnedWords&) = delete;

  std::span<std::int64_t> words() const { return {words_, count_}; }

 private:
  const CudaDriver* driver_;
  std::int64_t* words_ = nullptr;
  std::size_t count_;
};

class DeviceWords {
 public:
  DeviceWords(const CudaDriver& driver, std::size_t count) : driver_(&driver) {
    driver.require(driver.allocate(&address_, count * sizeof(std::int64_t)), "cuMemAlloc");
  }
  ~DeviceWords() { driver_->free(address_); }
  DeviceWords(const DeviceWords&) = delete;
  DeviceWords& operator=(const DeviceWords&) = delete;

  Address address() const { return address_; }

 private:
  const CudaDriver* driver_;
  Address address_ = 0;
};

}  // namespace tasuki::dataplane
