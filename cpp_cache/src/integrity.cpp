// check_integrity(): every numbered invariant of hybrid_tree.h, recomputed from the ids up.
#include <algorithm>
#include <map>
#include <string>

#include "cpp_cache/errors.h"
#include "cpp_cache/hybrid_tree.h"

namespace tasuki::cache {

namespace {

void require(bool holds, int invariant, const std::string& what) {
  if (holds) return;
  throw IntegrityError("invariant " + std::to_string(invariant) + ": " + what);
}

std::string name(const Node& node) { return "node " + std::to_string(raw(node.id)); }

// Who should own each id, told by those who hold it. Two tellers of one id break invariant 1.
class Census {
 public:
  explicit Census(const SlabAllocator& allocator) : allocator_(allocator) {}

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

void count_node(Census& census, const Node& node) {
  for (const PageId page : node.pages) census.hold(page, Owner::kTree);
  if (node.checkpoint) census.hold(node.checkpoint->slot, Owner::kTree);
  for (const Tail& tail : node.tails) {
    if (!tail.resident()) continue;
    census.hold(*tail.page, Owner::kTree);
    census.hold(tail.state->slot, Owner::kTree);
  }
}

void count_lease(Census& census, const Lease& lease) {
  const Owner owner = lease.state == LeaseState::kGranted ? Owner::kGranted : Owner::kWorking;
  for (std::size_t i = 0; i < lease.pages.size(); ++i) {
    if (lease.own[i]) census.hold(lease.pages[i], owner);
  }
  for (const SlotId slot : lease.working_slots) census.hold(slot, owner);
  for (const SlotId slot : lease.destination_slots) census.hold(slot, Owner::kWorking);
}

// What the tree must keep for the lease stands in the tree.
void check_lease(const RadixTree& tree, const Lease& lease) {
  const std::string who = "lease " + std::to_string(raw(lease.id));
  const Node& node = tree.node(lease.standing.node);
  require(std::ranges::find(node.lessees, lease.id) != node.lessees.end(), 3,
          who + " does not pin the node it stands in");
  require(
      lease.standing.depth <= node.depth && (node.is_root() || lease.standing.depth > node.start()),
      3, who + " stands outside its node");
  require(lease.cached_tokens < lease.match.prompt_tokens, 6, who + " left no token to compute");
  require(lease.match.usable_tokens + lease.match.causes.sum() == lease.match.prompt_tokens, 6,
          who + " does not account for its whole prompt");
  const PageMatch& pages = lease.match.in_pages;
  require(pages.usable_tokens + pages.causes.sum() == lease.match.prompt_tokens, 6,
          who + " does not account for its whole prompt in pages");
  require(
      pages.usable_tokens <= lease.match.usable_tokens && pages.kv_tokens <= lease.match.kv_tokens,
      6, who + " has more in whole pages than in all");
  const std::vector<PageId> path = tree.pages_to(lease.standing);
  std::vector<PageId> tails;
  for (const StateRef& ref : lease.pinned_states) {
    require(tree.state(ref).pins > 0, 3, who + " holds a state without a pin");
    if (ref.tail) tails.push_back(*tree.node(ref.node).find_tail(*ref.tail)->page);
  }
  for (std::size_t i = 0; i < lease.pages.size(); ++i) {
    if (lease.own[i]) continue;
    const bool on_path = i < path.size() && path[i] == lease.pages[i];
    require(on_path || std::ranges::find(tails, lease.pages[i]) != tails.end(), 3,
            who + " lost the page at place " + std::to_string(i));
  }
}

}  // namespace

void RadixTree::check_node(const Node& node, Tick now) const {
  const std::string who = name(node);
  require(node.last_use <= now, 5, who + " was used in the future");
  std::int64_t resident = 0;
  std::int64_t guarded = 0;
  for (const ChildEntry& entry : node.children) {
    const Node& child = this->node(entry.node);
    require(child.parent == node.id && child.start() == node.depth, 2,
            name(child) + " does not continue its parent");
    require(find_child(node, Tokens(child.tokens).first(kPageTokens)) == child.id, 2,
            name(child) + " is not the one found by its first page");
    require(node.resident || !child.resident, 3, name(child) + " outlived the KV above it");
    if (child.resident) ++resident;
    if (child.is_protected()) ++guarded;
  }
  require(resident == node.resident_children && guarded == node.protected_children, 3,
          who + " miscounts its children");
  require(node.resident || !node.is_protected(), 3, who + " was evicted under a lease");
  const auto tokens = static_cast<std::int64_t>(node.tokens.size());
  require(tokens % kPageTokens == 0 && (tokens > 0) != node.is_root(), 2,
          who + " is not made of whole pages");
  const auto pages = static_cast<std::int64_t>(node.pages.size());
  require(pages == (node.resident ? tokens / kPageTokens : 0), 2,
          who + " has not one page a run of tokens");
  if (!node.resident) {
    require(!node.checkpoint && node.resident_tails() == 0, 2, who + " has state but no KV");
    require(ghosts_.contains({node.ghost_since, node.id, std::nullopt}), 3,
            who + " is an unlisted ghost");
  }
  if (node.checkpoint) {
    require(node.checkpoint->boundary == node.depth, 2, who + " holds a state of another boundary");
    require(node.checkpoint->last_use <= now, 5, who + " has a state used in the future");
    require((node.checkpoint->pins == 0) == lists(node, *node.checkpoint), 3,
            who + ": its state is a candidate exactly if unpinned");
  }
  for (const Tail& tail : node.tails) {
    const auto length = static_cast<std::int64_t>(tail.tokens.size());
    require(length > 0 && length < kPageTokens, 2, who + " has a tail of a whole page");
    if (!tail.resident()) {
      require(ghosts_.contains({tail.ghost_since, node.id, tail.id}), 3,
              who + " has an unlisted ghost of a tail");
      continue;
    }
    require(tail.state && tail.state->boundary == node.depth + length, 2,
            who + " has a tail with a state of another boundary");
    require((tail.state->pins == 0) == lists(node, tail), 3,
            who + ": a tail is a candidate exactly if unpinned");
  }
}

void RadixTree::check(Tick now) const {
  std::int64_t resident = 0;
  std::int64_t states = 0;
  std::int64_t pinned_states = 0;
  std::int64_t pages = 0;
  std::int64_t pinned_pages = 0;
  std::int64_t ghosts = 0;
  std::int64_t ghost_tokens = 0;
  std::int64_t candidates = 0;
  nodes_.for_each([&](const Node& node) {
    check_node(node, now);
    const auto count_state = [&](const Checkpoint& state, std::int64_t tail_pages) {
      ++states;
      pages += tail_pages;
      if (state.pins == 0) {
        ++candidates;
        return;
      }
      ++pinned_states;
      pinned_pages += tail_pages;
      require(node.is_protected(), 3, name(node) + " has a pinned state but no lease near");
    };
    if (node.resident && !node.is_root()) ++resident;
    if (!node.resident) {
      ++ghosts;
      ghost_tokens += node.depth - node.start();
    }
    pages += static_cast<std::int64_t>(node.pages.size());
    if (node.is_protected()) pinned_pages += static_cast<std::int64_t>(node.pages.size());
    if (node.checkpoint) count_state(*node.checkpoint, 0);
    for (const Tail& tail : node.tails) {
      if (tail.resident()) {
        count_state(*tail.state, 1);
      } else {
        ++ghosts;
        ghost_tokens += static_cast<std::int64_t>(tail.tokens.size());
      }
    }
    if (const auto item = candidate(node)) {
      ++candidates;
      require(policy_->contains(*item), 3, name(node) + " could be evicted but is not listed");
    }
    if (node.is_root()) {
      require(roots_.contains(*node.salt) && roots_.find(*node.salt)->second == node.id, 2,
              name(node) + " is a root that no salt leads to");
    }
  });
  require(resident == resident_nodes_ && states == states_ && pages == pages_, 1,
          "the tree miscounts its items");
  require(pinned_states == pinned_states_ && pinned_pages == this->pinned_pages(), 1,
          "the tree miscounts its pinned items");
  require(candidates == policy_->size(), 3, "the policy lists what cannot be evicted");
  require(ghosts == ghosts_.size() && ghost_tokens == ghosts_.tokens() && !ghosts_.excess(), 3,
          "the list of ghosts disagrees with the tree");
}

void HybridTree::check_integrity() const {
  allocator_.check();
  tree_.check(clock_);
  Census census(allocator_);
  std::int64_t lessees = 0;
  tree_.nodes().for_each([&](const Node& node) {
    count_node(census, node);
    lessees += static_cast<std::int64_t>(node.lessees.size());
  });
  std::map<std::pair<NodeId, std::optional<TailId>>, std::int64_t> pins;
  for (const auto& [id, lease] : leases_) {
    count_lease(census, lease);
    check_lease(tree_, lease);
    for (const StateRef& ref : lease.pinned_states) ++pins[{ref.node, ref.tail}];
  }
  for (const auto& [ref, count] : pins) {
    require(tree_.state({ref.first, ref.second}).pins == count, 3,
            "a state has more or fewer pins than leases");
  }
  require(static_cast<std::int64_t>(pins.size()) == tree_.pinned_states(), 3,
          "a state is pinned by no lease");
  require(lessees == static_cast<std::int64_t>(leases_.size()), 3, "a node is pinned by no lease");
  for (const auto& [id, quarantine] : quarantines_) {
    for (const PageId page : quarantine.pages) census.hold(page, Owner::kQuarantined);
    for (const SlotId slot : quarantine.slots) census.hold(slot, Owner::kQuarantined);
  }
  census.check_none_lost();
  require(usable_tokens_ + lost_.sum() == prompt_tokens_, 6,
          "usable tokens and causes do not add up to the prompts");
}

}  // namespace tasuki::cache
