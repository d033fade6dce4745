#include "nodes/child_list.h"

#include <algorithm>
#include <tuple>

namespace tasuki::cache {

namespace {

// FNV-1a over words in four lanes that do not wait for each other, finished so that low bits depend
// on all tokens.
std::uint64_t hash_of(Tokens page) {
  constexpr std::uint64_t kPrime = 0x100000001b3ULL;
  std::uint64_t lanes[4] = {0xcbf29ce484222325ULL, 0x84222325cbf29ce4ULL, 0x9ce484222325cbf2ULL,
                            0x2325cbf29ce48422ULL};
  for (std::size_t i = 0; i + 4 <= page.size(); i += 4) {
    for (std::size_t lane = 0; lane < 4; ++lane) {
      lanes[lane] = (lanes[lane] ^ static_cast<std::uint32_t>(page[i + lane])) * kPrime;
    }
  }
  std::uint64_t hash = 0;
  for (const std::uint64_t lane : lanes) hash = (hash ^ lane ^ (lane >> 32)) * kPrime;
  return hash ^ (hash >> 32);
}

bool before(const ChildEntry& left, const ChildEntry& right) {
  return std::tie(left.hash, left.node) < std::tie(right.hash, right.node);
}

}  // namespace

PageKey::PageKey(Tokens page) : tokens(page), hash(hash_of(page)) {}

void ChildList::insert(NodeId child, const PageKey& first_page) {
  const ChildEntry entry{first_page.hash, first_page.tokens.front(), child};
  entries_.insert(std::lower_bound(begin(), end(), entry, before), entry);
}

void ChildList::erase(NodeId child) {
  entries_.erase_if([child](const ChildEntry& entry) { return entry.node == child; });
}

// Hashes are spread evenly, so the search begins at the expected place and widens: in a large tree
// each step of a binary search waits for memory.
const ChildEntry* ChildList::first_from(std::uint64_t hash) const {
  const ChildEntry* low = begin();
  const ChildEntry* high = end();
  const ChildEntry* const guess = expected_place(hash);
  std::ptrdiff_t step = 1;
  if (guess->hash < hash) {
    low = guess + 1;
    for (; high - low > step && low[step - 1].hash < hash; step *= 2) low += step;
    if (high - low > step) high = low + step;
  } else {
    high = guess;
    for (; high - low > step && high[-step].hash >= hash; step *= 2) high -= step;
    if (high - low > step) low = high - step;
  }
  return std::lower_bound(
      low, high, hash, [](const ChildEntry& child, std::uint64_t key) { return child.hash < key; });
}

}  // namespace tasuki::cache
