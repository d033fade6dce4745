#include "digest/row_digester.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace tasuki::digest {

namespace {

constexpr std::int64_t kWordBytes = 8;

std::vector<std::uint64_t> word_keys(std::int64_t count) {
  std::vector<std::uint64_t> keys;
  keys.reserve(static_cast<std::size_t>(count));
  for (std::int64_t index = 0; index < count; ++index) {
    keys.push_back(splitmix64(static_cast<std::uint64_t>(index) * 0x9E3779B97F4A7C15u) | 1);
  }
  return keys;
}

}  // namespace

RowDigester::RowDigester(std::span<const std::byte> memory, std::int64_t longest,
                         Instructions instructions)
    : memory_(memory), instructions_(instructions) {
  if (memory.size() % kWordBytes != 0) {
    throw std::invalid_argument("a memory of " + std::to_string(memory.size()) +
                                " bytes is no whole number of 64-bit words");
  }
  if (longest < 0) throw std::invalid_argument("the longest row cannot be negative");
  if (std::ranges::find(runnable(), instructions) == runnable().end()) {
    throw std::invalid_argument("this CPU has no " + std::string(name_of(instructions)));
  }
  keys_ = word_keys(longest);
  sums_ = sums_by(instructions);
}

void RowDigester::check(const Rows& rows) const {
  const std::size_t count = rows.offsets.size();
  if (rows.lengths.size() != count || rows.seeds.size() != count) {
    throw std::invalid_argument("every row has one offset, one length and one seed");
  }
  const auto words = static_cast<std::int64_t>(memory_.size()) / kWordBytes;
  const auto longest = static_cast<std::int64_t>(keys_.size());
  for (std::size_t row = 0; row < count; ++row) {
    const std::int64_t offset = rows.offsets[row];
    const std::int64_t length = rows.lengths[row];
    if (length < 0 || length > longest || offset < 0 || offset > words - length) {
      throw std::out_of_range("row " + std::to_string(row) + " has " + std::to_string(length) +
                              " words from word " + std::to_string(offset) + ", the memory " +
                              std::to_string(words) + " and a row at most " +
                              std::to_string(longest));
    }
  }
}

std::uint64_t RowDigester::digest(const Rows& rows) const {
  check(rows);
  const auto start = [&](std::size_t row) {
    return memory_.data() + rows.offsets[row] * kWordBytes;
  };
  const auto mixed = [&](std::size_t row, std::uint64_t sum) {
    return splitmix64(static_cast<std::uint64_t>(rows.seeds[row]) ^ sum);
  };
  std::uint64_t total = 0;
  const std::size_t count = rows.offsets.size();
  for (std::size_t row = 0; row < count;) {
    const std::int64_t length = rows.lengths[row];
    const auto words = static_cast<std::size_t>(length);
    const auto group = rows.lengths.subspan(row, std::min(kRowsTogether, count - row));
    if (group.size() == kRowsTogether && std::ranges::count(group, length) == kRowsTogether) {
      RowStarts starts;
      for (std::size_t each = 0; each < kRowsTogether; ++each) starts[each] = start(row + each);
      const RowSums sums = sums_.together(starts, keys_.data(), words);
      for (const std::uint64_t sum : sums) total += mixed(row++, sum);
    } else {
      total += mixed(row, sums_.alone(start(row), keys_.data(), words));
      ++row;
    }
  }
  return total;
}

}  // namespace tasuki::digest
