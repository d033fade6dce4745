// Digests of rows: every set of instructions against the definition, a word at a time.
#include <doctest/doctest.h>

#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "digest/row_digester.h"

namespace tasuki::digest {
namespace {

constexpr std::int64_t kWords = 5'000;
constexpr std::int64_t kLongest = 300;

struct RowTable {
  std::vector<std::int64_t> offsets, lengths, seeds;

  void add(std::int64_t offset, std::int64_t length, std::int64_t seed) {
    offsets.push_back(offset);
    lengths.push_back(length);
    seeds.push_back(seed);
  }
  Rows rows() const { return {offsets, lengths, seeds}; }
};

std::vector<std::uint64_t> random_words() {
  std::mt19937_64 random(5);
  std::vector<std::uint64_t> words(kWords);
  for (auto& word : words) word = random();
  return words;
}

std::uint64_t by_definition(const std::vector<std::uint64_t>& words, const RowTable& table) {
  std::uint64_t total = 0;
  for (std::size_t row = 0; row < table.offsets.size(); ++row) {
    std::uint64_t sum = 0;
    for (std::int64_t index = 0; index < table.lengths[row]; ++index) {
      const std::uint64_t key =
          splitmix64(static_cast<std::uint64_t>(index) * 0x9E3779B97F4A7C15u) | 1;
      sum += words[static_cast<std::size_t>(table.offsets[row] + index)] * key;
    }
    total += splitmix64(static_cast<std::uint64_t>(table.seeds[row]) ^ sum);
  }
  return total;
}

TEST_CASE("a digest is what it is defined to be, by all instructions") {
  const auto words = random_words();
  std::mt19937_64 random(6);
  for (const Instructions instructions : runnable()) {
    CAPTURE(name_of(instructions));
    const RowDigester digester(std::as_bytes(std::span(words)), kLongest, instructions);
    CHECK(digester.instructions() == instructions);
    CHECK(digester.digest({}) == 0);
    for (int round = 0; round < 300; ++round) {
      RowTable table;
      while (table.offsets.size() < 12) {
        // Lengths repeat: rows are summed together, alone, and a few behind a group.
        const auto length = static_cast<std::int64_t>(random() % (kLongest + 1));
        for (auto left = 1 + random() % 7; left > 0; --left) {
          const auto offset = static_cast<std::int64_t>(random() % (kWords - length + 1));
          table.add(offset, length, static_cast<std::int64_t>(random()));
        }
      }
      REQUIRE(digester.digest(table.rows()) == by_definition(words, table));
    }
  }
}

TEST_CASE("words count wherever a row begins, to the memory's last byte") {
  const auto words = random_words();
  // Not at the alignment of a word.
  std::vector<std::byte> shifted(8 * kWords + 1);
  std::memcpy(shifted.data() + 1, words.data(), 8 * kWords);
  const std::span memory(shifted.data() + 1, 8 * kWords);
  RowTable table;
  for (std::int64_t row = 0; row < 5; ++row) table.add(kWords - kLongest, kLongest, row);
  for (const Instructions instructions : runnable()) {
    const RowDigester digester(memory, kLongest, instructions);
    CHECK(digester.digest(table.rows()) == by_definition(words, table));
  }
}

TEST_CASE("rows outside the memory are refused") {
  const auto words = random_words();
  const RowDigester digester(std::as_bytes(std::span(words)), kLongest, runnable().back());
  const auto refused = [&](std::int64_t offset, std::int64_t length) {
    RowTable table;
    table.add(0, 1, 0);
    table.add(offset, length, 0);
    CHECK_THROWS_AS(digester.digest(table.rows()), std::out_of_range);
  };
  refused(kWords, 1);
  refused(kWords - 1, 2);
  refused(-1, 1);
  refused(0, -1);
  refused(0, kLongest + 1);
  refused(std::numeric_limits<std::int64_t>::max(), 2);
  RowTable uneven;
  uneven.add(0, 1, 0);
  uneven.seeds.push_back(0);
  CHECK_THROWS_AS(digester.digest(uneven.rows()), std::invalid_argument);
  CHECK_THROWS_AS(RowDigester(std::as_bytes(std::span(words)).first(15), 1, Instructions::kScalar),
                  std::invalid_argument);
}

}  // namespace
}  // namespace tasuki::digest
