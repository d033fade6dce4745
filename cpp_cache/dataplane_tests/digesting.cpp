// Digests of layer chunks on a GPU, equal to those of a CPU.
#include <doctest/doctest.h>

#include <span>

#include "digest/row_digester.h"
#include "digest/window_digester.h"
#include "peer.h"

using namespace dataplane_tests;

TEST_CASE("windows that are digested together have their own digests, from many threads") {
  constexpr std::int64_t kLongest = 40;
  std::vector<std::uint64_t> words(5000);
  std::mt19937_64 random(3);
  for (std::uint64_t& word : words) word = random();
  const std::span<const std::byte> memory = std::as_bytes(std::span(words));
  digest::WindowGeometry geometry{{}, 50, 400};
  geometry.layers.push_back({{{0, 20, 0}, {20, 20, std::uint64_t{1} << 33}}, {}});
  geometry.layers.push_back({{}, {{7, kLongest, std::uint64_t{1} << 32}}});
  const digest::RowDigester rows(memory, kLongest, digest::Instructions::kScalar);
  const digest::WindowDigester twin(rows, geometry);
  std::vector<std::uint64_t> keys(kLongest);
  for (std::size_t index = 0; index < keys.size(); ++index) {
    std::uint64_t key = (index + 1) * 0x9E3779B97F4A7C15u;
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9u;
    key = (key ^ (key >> 27)) * 0x94D049BB133111EBu;
    keys[index] = (key ^ (key >> 31)) | 1;
  }
  GpuDigester ours(imagined_context(), {{kSum.handle(), 4, 0}, {kMix.handle(), 1, 0}, kParts},
                   reinterpret_cast<Address>(words.data()), reinterpret_cast<Address>(keys.data()),
                   geometry);
  CHECK(ours.digest(std::vector<digest::WindowPlaces>{}).empty());
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937 own(thread);
      for (int call = 0; call < 15; ++call) {
        const auto below = [&](unsigned most) { return static_cast<std::int64_t>(own() % most); };
        std::vector<std::vector<std::int64_t>> pages(1 + own() % 5);
        std::vector<digest::WindowPlaces> windows;
        for (auto& each : pages) {
          for (std::int64_t page = below(4); page > 0; --page) each.push_back(below(90));
          windows.push_back({own(), own(), below(2), 2, below(9), each, std::nullopt});
          if (below(2) == 1) windows.back().slot = below(10);
        }
        const auto found = ours.digest(windows);
        REQUIRE(found.size() == windows.size());
        for (std::size_t index = 0; index < windows.size(); ++index) {
          CHECK(found[index] == twin.digest(windows[index]));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // More rows than the first tables hold.
  std::vector<std::int64_t> many(9000);
  for (std::int64_t& page : many) page = static_cast<std::int64_t>(random() % 90);
  const digest::WindowPlaces large{1, 2, 0, 2, 0, many, 3};
  CHECK(ours.digest(std::vector{large, large}) ==
        std::vector<std::uint64_t>(2, twin.digest(large)));
  CHECK_THROWS_AS(ours.digest(std::vector<digest::WindowPlaces>{{1, 2, 0, 3, 0, many, 3}}),
                  std::out_of_range);
}
