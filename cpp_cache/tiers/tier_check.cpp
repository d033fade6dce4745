#include "tiers/tier_check.h"

#include <map>
#include <string>
#include <utility>

#include "core/invariant.h"

namespace tasuki::cache {

// Counts the copies of one tier, to compare with the counters of tier and tree.
class TierCheck {
 public:
  TierCheck(const Tiers& tiers, const LowerTier& tier) : tiers_(tiers), tier_(tier) {}

  void run() {
    tier_.allocator().check();
    read_transfers();
    tier_.copies().for_each(
        [this](NodeId id, const NodeCopies& held) { check_node(tree().node(id), held); });
    tree().nodes().for_each([this](const Node& node) { check_marks(node); });
    check_counts();
  }

 private:
  const RadixTree& tree() const { return tiers_.tree_; }
  std::string name(NodeId id) const {
    return "tier " + std::to_string(raw(tier_.id())) + ": node " + std::to_string(raw(id));
  }

  void read_transfers() {
    for (const auto& [id, transfer] : tiers_.transfers_) {
      if (const auto* write = std::get_if<WriteInFlight>(&transfer.what)) {
        read_write(*write);
      } else {
        read_load(std::get<LoadInFlight>(transfer.what));
      }
    }
  }

  void read_load(const LoadInFlight& load) {
    if (load.is_abandoned) return;
    if (load.from == tier_.id()) ++state_readers_[load.state];
    for (const auto& [tier, run] : load.runs) {
      if (tier == tier_.id()) ++run_readers_[run];
    }
  }

  void read_write(const WriteInFlight& write) {
    if (write.from == tier_.id()) {
      const StateCopy* const source = tier_.copies().state(write.state);
      require(source != nullptr, 10,
              "tier " + std::to_string(raw(tier_.id())) + ": a state that a write reads went");
      ++(source->state == CopyState::kLeaving ? leaving_ : state_readers_)[write.state];
    }
    if (write.to != tier_.id()) return;
    for (const TierIds& ids : write.orphans) {
      pages_working_ += static_cast<std::int64_t>(ids.pages.size());
      if (ids.slot) ++slots_working_;
    }
    if (write.is_abandoned) return;
    ++reserved_[write.state];
    for (const NodeId run : write.runs) ++reserved_runs_[run];
  }

  void check_node(const Node& node, const NodeCopies& held) {
    const std::string who = name(node.id);
    const bool has_run = held.run.state != CopyState::kNone;
    require(!held.empty(), 7, who + " has an entry for nothing");
    require(has_run || node.is_root() || !held.holds_states(), 9, who + " has a state without KV");
    if (has_run) {
      require(held.run.pages.size() * kPageTokens == node.tokens.size(), 2,
              who + " has not one page a run of tokens");
      const Node& parent = tree().node(*node.parent);
      require(parent.is_root() || tier_.copies().run_state(parent.id) != CopyState::kNone, 9,
              who + " stands below a run that the tier lacks");
      require(held.run.state == CopyState::kReserved || parent.is_root() ||
                  tier_.copies().run_state(parent.id) == CopyState::kPresent,
              7, who + " is of use above one that is being written");
      count_pages(held.run.pages.size(), held.run.state);
    }
    require((held.run.state == CopyState::kReserved) == (reserved_runs_.erase(node.id) > 0), 7,
            who + " is reserved exactly while a write brings it");
    const auto readers = run_readers_.find(node.id);
    require(held.run.readers == (readers == run_readers_.end() ? 0 : readers->second), 10,
            who + " is kept by other loads than there are");
    std::int32_t children = 0;
    const auto look = [&](const ChildList& list) {
      for (const ChildEntry child : list) {
        if (tier_.copies().run_state(child.node) != CopyState::kNone) ++children;
      }
    };
    look(node.children);
    look(node.ghost_children);
    require(children == held.children, 9, who + " miscounts the copies below it");
    if (held.checkpoint) check_state({node.id, std::nullopt}, *held.checkpoint, node.depth);
    for (const auto& [id, copy] : held.tails) {
      const Tail* const tail = node.tails.find(id);
      require(tail != nullptr && copy.page.has_value(), 2, who + " has a copy of no tail");
      check_state({node.id, id}, copy, node.depth + static_cast<std::int64_t>(tail->tokens.size()));
    }
    if (const auto item = tier_.run_item(node.id)) check_listed(*item);
  }

  void check_state(const StateKey& key, const StateCopy& copy, std::int64_t boundary) {
    const std::string who = name(key.node);
    require(copy.held.boundary == boundary, 2, who + " has a copy of another boundary");
    require((copy.state == CopyState::kReserved) == (reserved_.erase(key) > 0), 7,
            who + " has a state that is reserved exactly while a write brings it");
    require((copy.state == CopyState::kLeaving) == (leaving_.erase(key) > 0), 7,
            who + " has a state that leaves exactly while a write reads it");
    const auto readers = state_readers_.find(key);
    require(copy.held.pins == (readers == state_readers_.end() ? 0 : readers->second), 10,
            who + " has a state that is kept by other loads than there are");
    const bool is_of_use = copy.state != CopyState::kReserved;
    require(((tree().state_below(key).tiers & bit_of(tier_.id())) != 0) == is_of_use, 7,
            who + " is known by its states of use");
    require(tier_.allocator().owner(copy.held.slot) == (is_of_use ? Owner::kTree : Owner::kWorking),
            1, who + " has a slot with another owner");
    ++(is_of_use ? slots_ : slots_working_);
    if (copy.page) count_pages(1, copy.state);
    if (const auto item = tier_.state_item(key)) check_listed(*item);
  }

  // The tree's marks equal the tier's copies.
  void check_marks(const Node& node) const {
    const TierBits bit = bit_of(tier_.id());
    const CopyState run = tier_.copies().run_state(node.id);
    require(((node.kv_below & bit) != 0) == (run == CopyState::kPresent), 7,
            name(node.id) + " is known by its KV of use");
    const auto has = [&](const std::optional<TailId>& tail) {
      return tier_.copies().state({node.id, tail}) != nullptr;
    };
    require((node.checkpoint_below.tiers & bit) == 0 || has(std::nullopt), 7,
            name(node.id) + " is believed to have a state");
    for (const auto& [id, tail] : node.tails) {
      require((tail.below.tiers & bit) == 0 || has(id), 7,
              name(node.id) + " is believed to have a tail");
    }
  }

  void count_pages(std::size_t pages, CopyState state) {
    (state == CopyState::kReserved ? pages_working_ : pages_) += static_cast<std::int64_t>(pages);
  }
  void check_listed(const EvictionItem& item) {
    require(tier_.policy().contains(item), 8, name(item.node) + " could go but is not listed");
    ++listed_;
  }

  void check_counts() const {
    const std::string who = "tier " + std::to_string(raw(tier_.id()));
    const PoolCounts pages = tier_.allocator().page_counts();
    const PoolCounts slots = tier_.allocator().slot_counts();
    require(pages.tree == pages_ && pages.working == pages_working_ && slots.tree == slots_ &&
                slots.working == slots_working_,
            1, who + ": an id is held by nobody, or twice");
    require(reserved_.empty() && reserved_runs_.empty() && leaving_.empty(), 7,
            who + ": a transfer brings what nothing waits for");
    require(listed_ == tier_.policy().size(), 8, who + ": the policy lists what cannot go");
  }

  const Tiers& tiers_;
  const LowerTier& tier_;
  std::map<StateKey, std::int32_t> state_readers_;
  std::map<NodeId, std::int32_t> run_readers_;
  std::map<StateKey, std::int32_t> reserved_;
  std::map<NodeId, std::int32_t> reserved_runs_;
  std::map<StateKey, std::int32_t> leaving_;
  std::int64_t pages_ = 0;
  std::int64_t pages_working_ = 0;
  std::int64_t slots_ = 0;
  std::int64_t slots_working_ = 0;
  std::int64_t listed_ = 0;
};

void check_tiers(const Tiers& tiers) {
  for (const auto& tier : tiers.all()) TierCheck(tiers, *tier).run();
}

}  // namespace tasuki::cache
