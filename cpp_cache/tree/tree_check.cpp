#include "tree/tree_check.h"

#include <cstdint>
#include <string>

#include "core/invariant.h"

namespace tasuki::cache {

namespace {

std::string name(const Node& node) { return "node " + std::to_string(raw(node.id)); }

// Counts the nodes' items, to compare with the tree's counters.
class TreeCheck {
 public:
  TreeCheck(const RadixTree& tree, Tick now) : tree_(tree), now_(now) {}

  void run() {
    tree_.nodes().for_each([this](const Node& node) {
      check_run(node);
      check_children(node);
      check_states(node);
      count(node);
    });
    check_counts();
  }

 private:
  void check_run(const Node& node) const;
  void check_children(const Node& node) const;
  void check_states(const Node& node) const;
  void count(const Node& node);
  void count_state(const Node& node, const Checkpoint& state, std::int64_t tail_pages);
  void check_counts() const;

  const RadixTree& tree_;
  Tick now_;
  std::int64_t resident_ = 0;
  std::int64_t states_ = 0;
  std::int64_t pinned_states_ = 0;
  std::int64_t pages_ = 0;
  std::int64_t pinned_pages_ = 0;
  std::int64_t ghosts_ = 0;
  std::int64_t ghost_tokens_ = 0;
  std::int64_t candidates_ = 0;
};

void TreeCheck::check_run(const Node& node) const {
  const std::string who = name(node);
  require(node.last_use <= now_, 5, who + " was used in the future");
  require(node.resident || !node.is_protected(), 3, who + " was evicted under an allocation");
  const auto tokens = static_cast<std::int64_t>(node.tokens.size());
  require(tokens % kPageTokens == 0 && (tokens > 0) != node.is_root(), 2,
          who + " is not made of whole pages");
  const auto pages = static_cast<std::int64_t>(node.pages.size());
  require(pages == (node.resident ? tokens / kPageTokens : 0), 2,
          who + " has not one page a run of tokens");
  if (!node.resident) {
    require(!node.checkpoint && node.tails.resident() == 0, 2, who + " has state but no KV");
    require(tree_.ghosts().contains({node.ghost_since, node.id, std::nullopt}) == node.is_ghost(),
            node.is_ghost() ? 3 : 8, who + " is listed as a ghost exactly if it is one");
  }
  if (node.is_root()) {
    require(tree_.root(*node.salt) == node.id, 2, who + " is a root that no salt leads to");
  }
}

void TreeCheck::check_children(const Node& node) const {
  std::int64_t guarded = 0;
  const auto check_child = [&](const ChildEntry& entry, bool stands) {
    const Node& child = tree_.node(entry.node);
    require(child.parent == node.id && child.start() == node.depth, 2,
            name(child) + " does not continue its parent");
    require(tree_.find_child(node, child.first_page()) == child.id, 2,
            name(child) + " is not the one found by its first page");
    require(child.resident == stands, 3, name(child) + " is in the wrong list of its parent");
    require(node.resident || !child.resident, 3, name(child) + " outlived the KV above it");
    require(!node.is_ghost() || child.is_ghost(), 3, name(child) + " stands below a ghost");
    require(node.is_root() || (child.kv_below & ~node.kv_below) == 0, 9,
            name(child) + " has a copy in a tier that lacks the run above it");
    require(!stands || node.first_pages.nearest(child.first_page()) == child.id, 2,
            name(child) + " is not the nearest to its own first page");
    if (child.is_protected()) ++guarded;
  };
  std::int64_t resident = 0;
  for (const ChildEntry entry : node.children) {
    check_child(entry, true);
    ++resident;
  }
  for (const ChildEntry entry : node.ghost_children) check_child(entry, false);
  require(resident == node.resident_children() && guarded == node.protected_children, 3,
          name(node) + " miscounts its children");
}

void TreeCheck::check_states(const Node& node) const {
  const std::string who = name(node);
  const EvictionCandidates& candidates = tree_.candidates();
  if (node.checkpoint) {
    require(node.checkpoint->boundary == node.depth, 2, who + " holds a state of another boundary");
    require(node.checkpoint->last_use <= now_, 5, who + " has a state used in the future");
    require((node.checkpoint->pins == 0) == candidates.lists_checkpoint(node), 3,
            who + ": its state is a candidate exactly if unpinned");
  }
  require(((node.checkpoint_below.tiers | node.kv_below) == node.kv_below), 9,
          who + " has a copy of its state in a tier that lacks its KV");
  require(node.checkpoint_below.tiers == 0 || !node.checkpoint_evicted, 8,
          who + " forgot a state that a tier holds");
  std::int64_t resident = 0;
  for (const auto& [id, tail] : node.tails) {
    require(node.is_root() || (tail.below.tiers & ~node.kv_below) == 0, 9,
            who + " has a copy of a tail in a tier that lacks its KV");
    const auto length = static_cast<std::int64_t>(tail.tokens.size());
    require(node.tails.find(tail.tokens) == &tail, 2,
            who + " has a tail that is not found by its tokens");
    require(length > 0 && length < kPageTokens, 2, who + " has a tail of a whole page");
    if (!tail.resident()) {
      require(tree_.ghosts().contains({tail.ghost_since, node.id, tail.id}) == tail.is_ghost(),
              tail.is_ghost() ? 3 : 8,
              who + " has a tail that is listed as a ghost exactly if it is one");
      continue;
    }
    ++resident;
    require(node.tails.find(*tail.page) == &tail, 2,
            who + " has a tail that is not found by its page");
    require(tail.state && tail.state->boundary == node.depth + length, 2,
            who + " has a tail with a state of another boundary");
    require((tail.state->pins == 0) == candidates.lists_tail(node, tail), 3,
            who + ": a tail is a candidate exactly if unpinned");
  }
  require(resident == node.tails.resident(), 3, who + " miscounts its tails");
  if (const auto item = EvictionCandidates::kv_item(node)) {
    require(candidates.policy().contains(*item), 3, who + " could be evicted but is not listed");
  }
}

void TreeCheck::count(const Node& node) {
  if (node.resident && !node.is_root()) ++resident_;
  if (node.is_ghost()) {
    ++ghosts_;
    ghost_tokens_ += node.depth - node.start();
  }
  pages_ += static_cast<std::int64_t>(node.pages.size());
  if (node.is_protected()) pinned_pages_ += static_cast<std::int64_t>(node.pages.size());
  if (node.checkpoint) count_state(node, *node.checkpoint, 0);
  for (const auto& [id, tail] : node.tails) {
    if (tail.resident()) {
      count_state(node, *tail.state, 1);
    } else if (tail.is_ghost()) {
      ++ghosts_;
      ghost_tokens_ += static_cast<std::int64_t>(tail.tokens.size());
    }
  }
  if (EvictionCandidates::kv_item(node)) ++candidates_;
}

void TreeCheck::count_state(const Node& node, const Checkpoint& state, std::int64_t tail_pages) {
  ++states_;
  pages_ += tail_pages;
  if (state.pins == 0) {
    ++candidates_;
    return;
  }
  ++pinned_states_;
  pinned_pages_ += tail_pages;
  require(node.is_protected(), 3, name(node) + " has a pinned state but no allocation near");
}

void TreeCheck::check_counts() const {
  require(
      resident_ == tree_.resident_nodes() && states_ == tree_.states() && pages_ == tree_.pages(),
      1, "the tree miscounts its items");
  require(pinned_states_ == tree_.pins().states() && pinned_pages_ == tree_.pins().pages(), 1,
          "the tree miscounts its pinned items");
  require(candidates_ == tree_.candidates().policy().size(), 3,
          "the policy lists what cannot be evicted");
  const GhostList& ghosts = tree_.ghosts();
  require(ghosts_ == ghosts.size() && ghost_tokens_ == ghosts.tokens() && !ghosts.excess(), 3,
          "the list of ghosts disagrees with the tree");
}

}  // namespace

void check_tree(const RadixTree& tree, Tick now) { TreeCheck(tree, now).run(); }

}  // namespace tasuki::cache
