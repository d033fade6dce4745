#include "alloc/id_set.h"

#include <bit>

namespace tasuki::cache {

namespace {

constexpr std::int64_t kBits = 64;

std::size_t word_of(std::int64_t bit) { return static_cast<std::size_t>(bit / kBits); }
std::uint64_t mask_of(std::int64_t bit) { return std::uint64_t{1} << (bit % kBits); }

}  // namespace

IdSet::IdSet(std::int64_t limit) : limit_(limit) {
  std::int64_t bits = limit;
  do {
    bits = (bits + kBits - 1) / kBits;
    levels_.emplace_back(static_cast<std::size_t>(bits), 0);
  } while (bits > 1);
}

bool IdSet::contains(std::int64_t id) const { return levels_[0][word_of(id)] & mask_of(id); }

void IdSet::insert(std::int64_t id) {
  if (contains(id)) return;
  ++size_;
  for (auto& level : levels_) {
    std::uint64_t& word = level[word_of(id)];
    const bool had_some = word != 0;
    word |= mask_of(id);
    if (had_some) return;
    id /= kBits;
  }
}

void IdSet::erase(std::int64_t id) {
  if (!contains(id)) return;
  --size_;
  for (auto& level : levels_) {
    std::uint64_t& word = level[word_of(id)];
    word &= ~mask_of(id);
    if (word != 0) return;
    id /= kBits;
  }
}

std::int64_t IdSet::at_or_after(std::int64_t id) const {
  if (id >= limit_) return limit_;
  std::size_t height = 0;
  while (true) {  // up, until a word holds a bit at or after
    const auto& level = levels_[height];
    const std::uint64_t rest =
        word_of(id) < level.size() ? level[word_of(id)] & (~std::uint64_t{0} << (id % kBits)) : 0;
    if (rest != 0) {
      id = id / kBits * kBits + std::countr_zero(rest);
      break;
    }
    if (++height == levels_.size()) return limit_;
    id = id / kBits + 1;
  }
  while (height > 0) {
    --height;
    id = id * kBits + std::countr_zero(levels_[height][static_cast<std::size_t>(id)]);
  }
  return id;
}

}  // namespace tasuki::cache
