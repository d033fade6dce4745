// Calls of the CUDA driver for the data plane, found at run time: building needs no toolkit, and a
// machine without a GPU needs nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace tasuki::dataplane {

// Address of memory reached by a GPU: its own, a peer's, or pinned on the host.
using Address = std::uint64_t;
using StreamHandle = void*;
using EventHandle = void*;

// Failure of a driver call; what() has the call and the driver's error name.
class CudaError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The driver's functions by task; each returns its code, 0 for success.
struct CudaDriver {
  static constexpr int kNotReady = 600;

  int (*init)(unsigned flags);
  int (*device_get)(int* device, int ordinal);
  int (*retain_context)(void** context, int device);
  int (*push_context)(void* context);
  int (*pop_context)(void** context);
  int (*stream_create)(StreamHandle* stream, unsigned flags, int priority);
  int (*stream_synchronize)(StreamHandle stream);
  int (*stream_destroy)(StreamHandle stream);
  int (*event_create)(EventHandle* event, unsigned flags);
  int (*event_record)(EventHandle event, StreamHandle stream);
  int (*event_query)(EventHandle event);
  int (*event_synchronize)(EventHandle event);
  int (*event_destroy)(EventHandle event);
  int (*host_allocate)(void** memory, std::size_t bytes, unsigned flags);
  int (*host_free)(void* memory);
  int (*allocate)(Address* memory, std::size_t bytes);
  int (*free)(Address memory);
  int (*copy_to_device)(Address to, const void* from, std::size_t bytes, StreamHandle stream);
  int (*copy_to_host)(void* to, Address from, std::size_t bytes, StreamHandle stream);
  int (*launch)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                unsigned block_y, unsigned block_z, unsigned shared_bytes, StreamHandle stream,
                void** parameters, void** extra);
  int (*error_name)(int code, const char** name);

  // Throws CudaError if this machine has no driver, or one without these calls.
  static CudaDriver load();

  // Throws CudaError unless the code is 0.
  void require(int code, const char* call) const;
};

// The device's primary context, common to the whole process.
class CudaContext {
 public:
  // device: the driver's number. Throws CudaError if it does not exist.
  CudaContext(const CudaDriver& driver, int device);

  const CudaDriver& driver() const { return driver_; }

  // Makes the context the calling thread's own while it lives. Throws CudaError.
  class Current {
   public:
    explicit Current(const CudaContext& context);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const CudaDriver& driver_;
  };

 private:
  CudaDriver driver_;
  void* context_ = nullptr;
};

}  // namespace tasuki::dataplane
