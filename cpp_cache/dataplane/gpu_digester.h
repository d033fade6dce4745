// Digests of layer chunks in a GPU's arena. Kernels: transfer/chunks/digest_kernel.py. Definition:
// transfer/chunks/digest.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "dataplane/cuda_objects.h"
#include "digest/row_digester.h"
#include "digest/window_geometry.h"

namespace tasuki::dataplane {

// The two launches of a digest: sums of rows, `parts` programs each, and their mix.
struct DigestKernels {
  Kernel sum;
  Kernel mix;
  unsigned parts;
};

// Owns a stream and the tables of its launches. Knows no peers. Any thread may call, one at a time.
// Waits for its own stream only: the caller knows the chunks' writes to have ended.
class GpuDigester {
 public:
  // words: begin of the arena; keys: for the longest possible row. Throws CudaError.
  GpuDigester(std::shared_ptr<const CudaContext> context, const DigestKernels& kernels,
              Address words, Address keys, digest::WindowGeometry geometry);
  ~GpuDigester();
  GpuDigester(const GpuDigester&) = delete;
  GpuDigester& operator=(const GpuDigester&) = delete;

  // Block until the GPU has answered. Any number of layer chunks takes one copy there, two launches
  // and one copy back. Throws CudaError, and std::out_of_range for an unknown layer. REQUIRES: ids
  // are those of the arena.
  std::vector<std::uint64_t> digest(std::span<const digest::WindowPlaces> windows);

  // Digest one layer chunk with rows anywhere in the arena; otherwise as above.
  std::uint64_t digest(const digest::Rows& rows);

 private:
  // Make tables of this many rows.
  struct Tables {
    Tables(const CudaDriver& driver, std::size_t most, unsigned parts);

    std::size_t capacity;
    PinnedWords host;
    DeviceWords device;
    DeviceWords partial;
  };

  std::vector<std::uint64_t> digest(const digest::Rows& rows, std::span<const std::int64_t> numbers,
                                    std::size_t windows);

  std::shared_ptr<const CudaContext> context_;
  DigestKernels kernels_;
  Address words_;
  Address keys_;
  digest::WindowGeometry geometry_;
  std::mutex mutex_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> event_;
  std::unique_ptr<Tables> tables_;
};

}  // namespace tasuki::dataplane
