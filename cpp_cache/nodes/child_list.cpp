#include "nodes/child_list.h"

#include <algorithm>
#include <memory>
#include <new>

namespace tasuki::cache {

namespace {

// FNV-1a over words in four independent streams. The finish makes the low bits depend on all
// tokens.
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

// Above this load, runs without a gap grow long. Below a quarter, a walk would be over gaps.
bool is_full(std::uint32_t size, std::uint32_t homes) { return size > homes - homes / 8; }
bool is_sparse(std::uint32_t size, std::uint32_t homes) { return homes > 8 && size < homes / 4; }
std::uint32_t homes_for(std::uint32_t size) { return size + size / 2; }

}  // namespace

PageKey::PageKey(Tokens page) : tokens(page), hash(hash_of(page)) {}

ChildList::~ChildList() { clear(); }

void ChildList::clear() {
  if (head_) ::operator delete(std::exchange(head_, nullptr));
}

const ChildList::Place* ChildList::first_from(std::uint64_t hash) const {
  const Place* place = places() + home_of(hash);
  while (place != stop() && place->taken != 0 && place->hash() < hash) ++place;
  return place;
}

void ChildList::rebuild(std::uint32_t homes) {
  const auto size = static_cast<std::uint32_t>(this->size());
  const auto home_among = [homes](std::uint64_t hash) { return (hash >> 32) * homes >> 32; };
  std::uint64_t end = 0;  // behind the last entry
  for (const ChildEntry entry : *this) end = std::max(end, home_among(entry.hash)) + 1;
  const auto count = std::max<std::uint64_t>(homes, end + 1 + size / 8);
  void* const memory = ::operator new(sizeof(Head) + count * sizeof(Place));
  auto* const head = new (memory) Head{size, homes, static_cast<std::uint32_t>(count)};
  auto* const to = reinterpret_cast<Place*>(head + 1);
  std::uninitialized_fill_n(to, count, Place{});
  std::uint64_t next = 0;
  for (const Place* from = head_ ? places() : nullptr; head_ && from != stop(); ++from) {
    if (from->taken == 0) continue;
    next = std::max(next, home_among(from->hash()));
    to[next++] = *from;
  }
  clear();
  head_ = head;
}

void ChildList::insert(NodeId child, std::uint64_t hash) {
  if (!head_) {
    rebuild(1);
  } else if (is_full(head_->size + 1, head_->homes)) {
    rebuild(homes_for(head_->size + 1));
  }
  const ChildEntry entry{hash, child};
  auto* place = const_cast<Place*>(first_from(entry.hash));
  while (place != stop() && place->taken != 0 && place->entry() < entry) ++place;
  auto* gap = place;
  while (gap != stop() && gap->taken != 0) ++gap;
  if (gap == stop()) {
    // Too many entries were pushed behind the last home.
    rebuild(head_->homes);
    insert(child, hash);
    return;
  }
  std::move_backward(place, gap, gap + 1);
  *place = {static_cast<std::uint32_t>(entry.hash >> 32), static_cast<std::uint32_t>(entry.hash), 1,
            static_cast<std::uint32_t>(raw(child))};
  ++head_->size;
}

void ChildList::erase(NodeId child, std::uint64_t hash) {
  auto* gap = const_cast<Place*>(first_from(hash));
  while (gap->child() != child) ++gap;
  // Move later entries one place nearer to their homes.
  for (auto* next = gap + 1; next != stop() && next->taken != 0; ++next) {
    if (places() + home_of(next->hash()) == next) break;
    *gap++ = *next;
  }
  *gap = {};
  if (--head_->size == 0) {
    clear();
  } else if (is_sparse(head_->size, head_->homes)) {
    rebuild(homes_for(head_->size));
  }
}

}  // namespace tasuki::cache
