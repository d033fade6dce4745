#include "cache/holder_check.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/invariant.h"

namespace tasuki::cache {

namespace {

// Expected owner of each id, by its holder. Two holders of one id break invariant 1.
class HeldIds {
 public:
  explicit HeldIds(const SlabAllocator& allocator) : allocator_(allocator) {}

  void hold(PageId page, Owner owner) {
    require(pages_.emplace(page, owner).second, 1,
            "page " + std::to_string(raw(page)) + " is in two places");
    require(allocator_.owner(page) == owner, 1,
            "page " + std::to_string(raw(page)) + " has another owner than its holder");
  }
  void hold(SlotId slot, Owner owner) {
    require(slots_.emplace(slot, owner).second, 1,
            "slot " + std::to_string(raw(slot)) + " is in two places");
    require(allocator_.owner(slot) == owner, 1,
            "slot " + std::to_string(raw(slot)) + " has another owner than its holder");
  }
  void hold(const Node& node) {
    for (const PageId page : node.pages) hold(page, Owner::kTree);
    if (node.checkpoint) hold(node.checkpoint->slot, Owner::kTree);
    for (const auto& [id, tail] : node.tails) {
      if (!tail.resident()) continue;
      hold(*tail.page, Owner::kTree);
      hold(tail.state->slot, Owner::kTree);
    }
  }
  void hold(const Allocation& allocation) {
    const bool is_granted = allocation.state == AllocationState::kGranted;
    const Owner owner = is_granted ? Owner::kGranted : Owner::kWorking;
    for (std::size_t i = 0; i < allocation.pages.size(); ++i) {
      if (allocation.own[i]) hold(allocation.pages[i], owner);
    }
    for (const SlotId slot : allocation.working_slots) hold(slot, owner);
    for (const SlotId slot : allocation.destination_slots) hold(slot, Owner::kWorking);
  }
  void check_none_lost() const {
    const PoolCounts pages = allocator_.page_counts();
    const PoolCounts slots = allocator_.slot_counts();
    require(pages.total - pages.free == static_cast<std::int64_t>(pages_.size()), 1,
            "a page is held by nobody");
    require(slots.total - slots.free == static_cast<std::int64_t>(slots_.size()), 1,
            "a slot is held by nobody");
  }

 private:
  const SlabAllocator& allocator_;
  std::map<PageId, Owner> pages_;
  std::map<SlotId, Owner> slots_;
};

void check_prompt(const Allocation& allocation, const std::string& who) {
  const Match& match = allocation.match;
  require(allocation.cached_tokens < match.prompt_tokens, 6, who + " left no token to compute");
  require(match.usable_tokens + match.miss_reasons.sum() == match.prompt_tokens, 6,
          who + " does not account for its whole prompt");
  const PageMatch& pages = match.in_pages;
  require(pages.usable_tokens + pages.miss_reasons.sum() == match.prompt_tokens, 6,
          who + " does not account for its whole prompt in pages");
  require(pages.usable_tokens <= match.usable_tokens && pages.kv_tokens <= match.kv_tokens, 6,
          who + " has more in whole pages than in all");
}

// The tree must still have all parts needed by the allocation.
void check_kept(const RadixTree& tree, const Allocation& allocation, const std::string& who) {
  const Position standing = allocation.standing;
  const Node& node = tree.node(standing.node);
  require(std::ranges::find(node.allocations, allocation.id) != node.allocations.end(), 3,
          who + " does not pin the node it stands in");
  require(standing.depth <= node.depth && (node.is_root() || standing.depth > node.start()), 3,
          who + " stands outside its node");
  const std::vector<PageId> path = tree.pages_to(standing);
  std::vector<PageId> tails;
  for (const StateKey& state : allocation.pinned_states) {
    require(tree.state(state).pins > 0, 3, who + " holds a state without a pin");
    if (state.tail) tails.push_back(*tree.node(state.node).tails.find(*state.tail)->page);
  }
  for (std::size_t i = 0; i < allocation.pages.size(); ++i) {
    if (allocation.own[i]) continue;
    const PageId page = allocation.pages[i];
    const bool on_path = i < path.size() && path[i] == page;
    require(on_path || std::ranges::find(tails, page) != tails.end(), 3,
            who + " lost the page at place " + std::to_string(i));
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(allocation.shared_pages); ++i) {
    require(!allocation.own[i], 1, who + " owns a shared page at place " + std::to_string(i));
  }
}

void check_pins(const RadixTree& tree, const AllocationTable& allocations) {
  std::map<StateKey, std::int64_t> pins;
  for (const auto& [id, allocation] : allocations.all()) {
    for (const StateKey& state : allocation.pinned_states) ++pins[state];
  }
  for (const auto& [state, count] : pins) {
    require(tree.state(state).pins == count, 3, "a state has more or fewer pins than allocations");
  }
  require(static_cast<std::int64_t>(pins.size()) == tree.pins().states(), 3,
          "a state is pinned by no allocation");
  std::int64_t standing = 0;
  tree.nodes().for_each([&standing](const Node& node) {
    standing += static_cast<std::int64_t>(node.allocations.size());
  });
  require(standing == allocations.size(), 3, "a node is pinned by no allocation");
}

}  // namespace

void check_holders(const SlabAllocator& allocator, const RadixTree& tree,
                   const AllocationTable& allocations, const QuarantineTable& quarantines) {
  HeldIds held(allocator);
  tree.nodes().for_each([&held](const Node& node) { held.hold(node); });
  for (const auto& [id, allocation] : allocations.all()) {
    const std::string who = "allocation " + std::to_string(raw(id));
    held.hold(allocation);
    check_prompt(allocation, who);
    check_kept(tree, allocation, who);
  }
  for (const auto& [id, quarantine] : quarantines.all()) {
    for (const PageId page : quarantine.pages) held.hold(page, Owner::kQuarantined);
    for (const SlotId slot : quarantine.slots) held.hold(slot, Owner::kQuarantined);
  }
  held.check_none_lost();
  check_pins(tree, allocations);
}

}  // namespace tasuki::cache
