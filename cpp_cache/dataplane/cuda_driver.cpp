#include "dataplane/cuda_driver.h"

#include <dlfcn.h>

namespace tasuki::dataplane {

namespace {

template <typename Function>
void find(void* library, const char* name, Function& function) {
  void* found = dlsym(library, name);
  if (found == nullptr) throw CudaError(std::string("this CUDA driver has no ") + name);
  function = reinterpret_cast<Function>(found);
}

}  // namespace

CudaDriver CudaDriver::load() {
  // Never closed: the driver lives as long as the process.
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw CudaError(std::string("no CUDA driver is installed here: ") + dlerror());
  }
  CudaDriver driver{};
  find(library, "cuInit", driver.init);
  find(library, "cuDeviceGet", driver.device_get);
  find(library, "cuDevicePrimaryCtxRetain", driver.retain_context);
  find(library, "cuCtxPushCurrent_v2", driver.push_context);
  find(library, "cuCtxPopCurrent_v2", driver.pop_context);
  find(library, "cuStreamCreateWithPriority", driver.stream_create);
  find(library, "cuStreamSynchronize", driver.stream_synchronize);
  find(library, "cuStreamDestroy_v2", driver.stream_destroy);
  find(library, "cuEventCreate", driver.event_create);
  find(library, "cuEventRecord", driver.event_record);
  find(library, "cuEventQuery", driver.event_query);
  find(library, "cuEventSynchronize", driver.event_synchronize);
  find(library, "cuEventDestroy_v2", driver.event_destroy);
  find(library, "cuMemHostAlloc", driver.host_allocate);
  find(library, "cuMemFreeHost", driver.host_free);
  find(library, "cuMemAlloc_v2", driver.allocate);
  find(library, "cuMemFree_v2", driver.free);
  find(library, "cuMemcpyHtoDAsync_v2", driver.copy_to_device);
  find(library, "cuMemcpyDtoHAsync_v2", driver.copy_to_host);
  find(library, "cuLaunchKernel", driver.launch);
  find(library, "cuGetErrorName", driver.error_name);
  driver.require(driver.init(0), "cuInit");
  return driver;
}

void CudaDriver::require(int code, const char* call) const {
  if (code == 0) return;
  const char* name = nullptr;
  if (error_name(code, &name) != 0 || name == nullptr) name = "an unknown error";
  throw CudaError(std::string(call) + ": " + name + " (" + std::to_string(code) + ")");
}

CudaContext::CudaContext(const CudaDriver& driver, int device) : driver_(driver) {
  int handle = 0;
  driver_.require(driver_.device_get(&handle, device), "cuDeviceGet");
  driver_.require(driver_.retain_context(&context_, handle), "cuDevicePrimaryCtxRetain");
}

CudaContext::Current::Current(const CudaContext& context) : driver_(context.driver_) {
  driver_.require(driver_.push_context(context.context_), "cuCtxPushCurrent");
}

CudaContext::Current::~Current() {
  void* popped = nullptr;
  driver_.pop_context(&popped);
}

}  // namespace tasuki::dataplane
