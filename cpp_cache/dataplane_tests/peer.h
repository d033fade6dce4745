// A peer in this process, and its writer over an imagined GPU.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "dataplane/digest_queue.h"
#include "dataplane/gpu_digester.h"
#include "dataplane/mailbox.h"
#include "dataplane/peer_writer.h"
#include "imagined_gpu.h"
#include "steps/step_counter.h"

namespace dataplane_tests {

using namespace tasuki::dataplane;
namespace digest = tasuki::digest;

constexpr double kHang = 20.0;
constexpr std::int64_t kChunk = 1 << 10;

template <typename Condition>
bool until(const Condition& condition) {
  for (const double began = now(); now() - began < kHang;) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return false;
}

// store_kernel.py's, one program after another.
inline void store(unsigned programs, unsigned, void** parameters) {
  const auto word = [&](int index) { return *static_cast<std::uint64_t*>(parameters[index]); };
  const auto source = word(0), arena = word(1);
  const auto* const gate = reinterpret_cast<const std::atomic<std::int64_t>*>(word(2));
  auto* const table = reinterpret_cast<std::int64_t*>(word(4));
  const auto pieces = *static_cast<std::int32_t*>(parameters[5]);
  auto* const flag = reinterpret_cast<std::int32_t*>(word(7));
  if (gate->load() != static_cast<std::int64_t>(word(3))) return;
  const std::int64_t* const local = table + 2;
  for (std::int32_t piece = 0; piece < pieces; ++piece) {
    std::memcpy(reinterpret_cast<void*>(arena + 16 * local[pieces + piece]),
                reinterpret_cast<const void*>(source + 16 * local[piece]),
                static_cast<std::size_t>(16 * local[2 * pieces + piece]));
  }
  table[0] += programs;
  *flag = 1;
}

inline const imagined::Kernel kStore{store, {8, 8, 8, 8, 8, 4, 4, 8}};

// digest_kernel.py's two, one program after another.
constexpr unsigned kParts = 4;

inline void sum(unsigned rows, unsigned, void** parameters) {
  const auto pointer = [&](int index) { return *static_cast<std::uint64_t**>(parameters[index]); };
  for (unsigned row = 0; row < rows; ++row) {
    const std::uint64_t* const words = pointer(0) + pointer(2)[row];
    std::uint64_t* const partial = pointer(4) + kParts * row;
    std::fill(partial, partial + kParts, 0);
    for (std::uint64_t word = 0; word < pointer(3)[row]; ++word) {
      partial[word % kParts] += words[word] * pointer(1)[word];
    }
  }
}

inline void mix(unsigned rows, unsigned, void** parameters) {
  const auto pointer = [&](int index) { return *static_cast<std::uint64_t**>(parameters[index]); };
  for (unsigned row = 0; row < rows; ++row) {
    const std::uint64_t* const partial = pointer(0) + kParts * row;
    const std::uint64_t value = std::accumulate(partial, partial + kParts, std::uint64_t{0});
    pointer(3)[pointer(2)[row]] += digest::splitmix64(pointer(1)[row] ^ value);
  }
}

inline const imagined::Kernel kSum{sum, {8, 8, 8, 8, 8}};
inline const imagined::Kernel kMix{mix, {8, 8, 8, 8}};

inline std::shared_ptr<const CudaContext> imagined_context() {
  return std::make_shared<CudaContext>(imagined::driver(), 0);
}

inline std::string unique_name() {
  static std::atomic<int> number = 0;
  return "tasuki-doctest-" + std::to_string(getpid()) + "-" + std::to_string(++number);
}

constexpr std::size_t kArena = 1 << 16;

// A peer in this process: its arena, gate and mailbox.
struct Peer {
  std::string name = unique_name();
  std::string secret = std::string(16, 's');
  Mailbox mailbox{name, secret};
  std::vector<char> arena = std::vector<char>(kArena, '\xA5');
  std::atomic<std::int64_t> gate = 77;

  std::shared_ptr<PeerEndpoint> endpoint() {
    const PeerTarget target{reinterpret_cast<Address>(arena.data()),
                            reinterpret_cast<Address>(&gate), 77, kArena};
    return std::make_shared<PeerEndpoint>(target, name, secret);
  }
};

struct Writing {
  std::vector<char> source = std::vector<char>(kArena);
  std::unique_ptr<PeerWriter> writer;

  Writing() {
    std::mt19937 random(5);
    for (char& byte : source) byte = static_cast<char>(random());
    writer = std::make_unique<PeerWriter>(imagined_context(), Kernel{kStore.handle(), 16, 0},
                                          StoreGrid{264, 4, kChunk},
                                          reinterpret_cast<Address>(source.data()), kArena);
  }
};

// An arena on an imagined GPU as the source of layer chunks, with its digests.
struct Sending : Writing {
  std::vector<std::uint64_t> keys = std::vector<std::uint64_t>(64, 3);
  digest::WindowGeometry geometry{{{{{0, 2, 0}}, {}}}, 2, 2};
  std::shared_ptr<DigestQueue> digests =
      std::make_shared<DigestQueue>(std::make_shared<GpuDigester>(
          imagined_context(), DigestKernels{{kSum.handle(), 4, 0}, {kMix.handle(), 1, 0}, kParts},
          reinterpret_cast<Address>(source.data()), reinterpret_cast<Address>(keys.data()),
          geometry));
  std::shared_ptr<StepCounter> steps = std::make_shared<StepCounter>();
  std::shared_ptr<WriteLease> lease = std::make_shared<WriteLease>();

  Sending() { lease->until = now() + kHang; }

  // Layer chunk `number`: one page of 16 bytes.
  HeldWrite window(std::int64_t number, std::int64_t tick, std::int64_t layers = 1) {
    const digest::WindowPlaces places{1, 1, 0, layers, number, {}, std::nullopt};
    return {{{{16 * number, 16 * number, 16}}, std::to_string(number)},
            tick,
            std::make_shared<AskedDigest>(places, std::vector<std::int64_t>{number})};
  }
  std::shared_ptr<PeerTransfer> hold(const std::shared_ptr<PeerEndpoint>& endpoint,
                                     HeldWrite write) {
    return writer->hold(endpoint, {std::move(write)}, {steps, lease, digests}).front();
  }
};

}  // namespace dataplane_tests
