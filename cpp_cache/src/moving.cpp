// Pages that change their id so that a slab empties.
#include <algorithm>
#include <utility>

#include "cpp_cache/hybrid_tree.h"

namespace tasuki::cache {

std::size_t RadixTree::dense(PageId page) const {
  const std::int64_t slab = raw(page) / shape_.blocks_per_slab;
  return static_cast<std::size_t>(slab * shape_.pages_per_slab +
                                  raw(page) % shape_.blocks_per_slab);
}

void RadixTree::settle_pages(const Node& node) {
  for (const PageId page : node.pages) homes_[dense(page)] = node.id;
}

bool RadixTree::movable(PageId page) const {
  const Node& home = node(homes_[dense(page)]);
  const auto holds = [page](const Tail& tail) { return tail.page == page; };
  const auto tail = std::ranges::find_if(home.tails, holds);
  return tail == home.tails.end() ? !home.is_protected() : tail->state->pins == 0;
}

void RadixTree::move_page(PageId from, PageId to) {
  Node& home = at(homes_[dense(from)]);
  const auto holds = [from](const Tail& tail) { return tail.page == from; };
  const auto tail = std::ranges::find_if(home.tails, holds);
  if (tail != home.tails.end()) {
    tail->page = to;
  } else {
    *std::ranges::find(home.pages, from) = to;
  }
  homes_[dense(to)] = home.id;
}

bool HybridTree::empty_a_slab() {
  for (const std::int64_t slab : allocator_.slabs_to_empty()) {
    const std::vector<PageId> pages = allocator_.pages_in(slab);
    const bool all_move = std::ranges::all_of(pages, [this](PageId page) {
      return allocator_.owner(page) == Owner::kTree && tree_.movable(page);
    });
    if (!all_move) continue;
    for (const PageId from : pages) {
      const PageId to = allocator_.take_page_outside(slab);
      tree_.move_page(from, to);
      allocator_.hand_over(to, Owner::kWorking, Owner::kTree);
      allocator_.give_back(from, Owner::kTree);
      moves_.push_back({from, to});
    }
    return true;
  }
  return false;
}

std::vector<PageMove> HybridTree::drain_moves() { return std::exchange(moves_, {}); }

}  // namespace tasuki::cache
