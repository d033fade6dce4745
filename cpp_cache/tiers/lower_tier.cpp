#include "tiers/lower_tier.h"

#include <algorithm>

namespace tasuki::cache {

namespace {

// Limit of nodes visited below a change: in a wide subtree the rest keeps a slightly old worth.
constexpr std::size_t kMostWeighed = 64;

CacheConfig shape_of(const CacheConfig& config, TierId tier) {
  CacheConfig shape = config;
  shape.slabs = config.tiers[raw(tier)].slabs;
  shape.tiers.clear();
  return shape;
}

}  // namespace

LowerTier::LowerTier(const CacheConfig& config, TierId tier, std::unique_ptr<EvictionPolicy> policy,
                     RadixTree& tree)
    : config_(config),
      id_(tier),
      tree_(tree),
      allocator_(shape_of(config, tier)),
      policy_(std::move(policy)),
      worth_(tree, copies_, config, tier) {}

bool LowerTier::could_hold(std::int64_t pages, std::int64_t slots) const {
  return pages <= (config().slabs - slots) * config_.pages_per_slab;
}

std::optional<EvictionItem> LowerTier::run_item(NodeId id) const {
  const NodeCopies* const held = copies_.find(id);
  if (held == nullptr || held->run.state != CopyState::kPresent || held->run.readers > 0 ||
      held->children > 0 || held->holds_states()) {
    return std::nullopt;
  }
  return EvictionItem{EvictionKind::kLeafPages, held->run.last_use, id, std::nullopt};
}

std::optional<EvictionItem> LowerTier::state_item(const StateKey& key) const {
  const StateCopy* const copy = copies_.state(key);
  if (copy == nullptr || copy->state != CopyState::kPresent || copy->held.pins > 0) {
    return std::nullopt;
  }
  return EvictionItem{key.tail ? EvictionKind::kTail : EvictionKind::kCheckpoint,
                      copy->held.last_use, key.node, key.tail, copy->held.probationary};
}

void LowerTier::list_run(NodeId id) {
  if (const auto item = run_item(id)) policy_->add(*item);
}

void LowerTier::withdraw_run(NodeId id) {
  if (const auto item = run_item(id)) policy_->remove(*item);
}

void LowerTier::list_state(const StateKey& key) {
  const auto item = state_item(key);
  if (item) policy_->add(*item, policy_->learns() ? worth_.of(key) : Worth{});
}

void LowerTier::withdraw_state(const StateKey& key) {
  if (const auto item = state_item(key)) policy_->remove(*item);
}

void LowerTier::weigh_below(NodeId top) {
  if (!policy_->learns()) return;
  std::vector<NodeId> order{top};
  for (std::size_t next = 0; next < order.size(); ++next) {
    const NodeId id = order[next];
    const NodeCopies& held = *copies_.find(id);
    const auto again = [this](const StateKey& key) {
      withdraw_state(key);
      list_state(key);
    };
    for (const auto& [tail, copy] : held.tails) again({id, tail});
    if (next > 0 && held.checkpoint) {
      again({id, std::nullopt});
      continue;
    }
    const auto follow = [&](const ChildList& children) {
      for (const ChildEntry child : children) {
        if (order.size() >= kMostWeighed) return;
        if (copies_.run_state(child.node) != CopyState::kNone) order.push_back(child.node);
      }
    };
    follow(tree_.node(id).children);
    follow(tree_.node(id).ghost_children);
  }
}

void LowerTier::mark_run(NodeId id, bool holds, Tick now) {
  const TierBits before = tree_.node(id).kv_below;
  const TierBits bit = bit_of(id_);
  tree_.set_kv_below(id, static_cast<TierBits>(holds ? before | bit : before & ~bit), now);
}

void LowerTier::mark_state(const StateKey& key, const StateCopy* copy, Tick now) {
  StateBelow below = tree_.state_below(key);
  const TierBits bit = bit_of(id_);
  if (copy != nullptr) {
    below.tiers |= bit;
    below.kind = static_cast<std::uint8_t>(copy->held.kind) & 0xF;
  } else {
    below.tiers &= static_cast<TierBits>(~bit) & 0xF;
  }
  tree_.set_state_below(key, below, now);
}

void LowerTier::reserve_run(NodeId id) {
  const auto tokens = static_cast<std::int64_t>(tree_.node(id).tokens.size());
  reserve_these(id, allocator_.take_pages(tokens / kPageTokens));
}

void LowerTier::reserve_these(NodeId id, std::vector<PageId> pages) {
  const Node& node = tree_.node(id);
  withdraw_run(*node.parent);
  ++copies_.at(*node.parent).children;
  RunCopy& run = copies_.at(id).run;
  run.state = CopyState::kReserved;
  run.pages = std::move(pages);
  run.last_use = node.last_use;
}

void LowerTier::reserve_state(const StateKey& key, const StateCopy& like) {
  StateCopy copy{CopyState::kReserved, like.held, std::nullopt};
  copy.held.pins = 0;
  copy.held.slot = allocator_.take_slot();
  if (key.tail) copy.page = allocator_.take_pages(1).front();
  reserve_these(key, copy);
}

void LowerTier::reserve_these(const StateKey& key, StateCopy copy) {
  withdraw_run(key.node);
  copy.state = CopyState::kReserved;
  copies_.add(key, copy);
}

bool LowerTier::claim(const TierIds& ids) {
  TierIds taken;
  for (const PageId page : ids.pages) {
    if (!allocator_.claim(page)) break;
    taken.pages.push_back(page);
  }
  if (taken.pages.size() == ids.pages.size() && (!ids.slot || allocator_.claim(*ids.slot))) {
    return true;
  }
  give_back(taken);
  return false;
}

void LowerTier::settle_run(NodeId id, Tick now) {
  RunCopy& run = copies_.at(id).run;
  run.state = CopyState::kPresent;
  for (const PageId page : run.pages) allocator_.hand_over(page, Owner::kWorking, Owner::kTree);
  mark_run(id, true, now);
  list_run(id);
}

void LowerTier::settle_state(const StateKey& key, Tick now) {
  StateCopy& copy = *copies_.state(key);
  copy.state = CopyState::kPresent;
  allocator_.hand_over(copy.held.slot, Owner::kWorking, Owner::kTree);
  if (copy.page) allocator_.hand_over(*copy.page, Owner::kWorking, Owner::kTree);
  mark_state(key, &copy, now);
  list_state(key);
  weigh_below(key.node);
}

TierIds LowerTier::cancel_run(NodeId id) {
  TierIds ids{std::move(copies_.at(id).run.pages)};
  free_run(id);
  return ids;
}

// Forget the copy only: its ids already have another owner.
void LowerTier::free_run(NodeId id) {
  const NodeId parent = *tree_.node(id).parent;
  copies_.at(id).run = RunCopy{};
  copies_.drop_if_empty(id);
  --copies_.at(parent).children;
  list_run(parent);
  copies_.drop_if_empty(parent);
}

TierIds LowerTier::take_out_state(const StateKey& key) {
  const StateCopy copy = *copies_.state(key);
  TierIds ids{{}, copy.held.slot};
  if (copy.page) ids.pages.push_back(*copy.page);
  copies_.erase(key);
  list_run(key.node);
  return ids;
}

TierIds LowerTier::cancel_state(const StateKey& key) {
  TierIds ids = take_out_state(key);
  copies_.drop_if_empty(key.node);
  return ids;
}

void LowerTier::give_back(const TierIds& ids) {
  for (const PageId page : ids.pages) allocator_.give_back(page, Owner::kWorking);
  if (ids.slot) allocator_.give_back(*ids.slot, Owner::kWorking);
}

void LowerTier::drop(const EvictionItem& item, bool passes_on, Tick now) {
  policy_->remove(item);
  if (item.kind == EvictionKind::kLeafPages) {
    drop_run(item.node, now);
    return;
  }
  const StateKey key{item.node, item.tail};
  if (passes_on && policy_->learns()) {
    if (const auto heir = worth_.heir_of(key)) tree_.policy().inherited(key, *heir);
  }
  drop_state(key, now);
}

void LowerTier::drop_run(NodeId id, Tick now) {
  for (const PageId page : copies_.at(id).run.pages) allocator_.give_back(page, Owner::kTree);
  free_run(id);
  mark_run(id, false, now);
}

void LowerTier::drop_state(const StateKey& key, Tick now) {
  const TierIds ids = take_out_state(key);
  for (const PageId page : ids.pages) allocator_.give_back(page, Owner::kTree);
  allocator_.give_back(*ids.slot, Owner::kTree);
  weigh_below(key.node);
  copies_.drop_if_empty(key.node);
  mark_state(key, nullptr, now);
}

void LowerTier::leave(const StateKey& key) {
  withdraw_state(key);
  copies_.state(key)->state = CopyState::kLeaving;
}

void LowerTier::stay(const StateKey& key) {
  copies_.state(key)->state = CopyState::kPresent;
  list_state(key);
}

void LowerTier::change_run(NodeId id, std::int32_t readers) {
  withdraw_run(id);
  copies_.at(id).run.readers += readers;
  list_run(id);
}

void LowerTier::change_state(const StateKey& key, std::int32_t readers) {
  withdraw_state(key);
  copies_.state(key)->held.pins += readers;
  list_state(key);
}

void LowerTier::touch(const StateKey& key, Tick now) {
  StateCopy* const copy = copies_.state(key);
  if (copy == nullptr) return;
  withdraw_state(key);
  copy->held.last_use = now;
  copy->held.probationary = false;
  copies_.at(key.node).run.last_use = now;
  list_state(key);
}

void LowerTier::put_on_probation(const StateKey& key) {
  StateCopy* const copy = copies_.state(key);
  if (copy == nullptr) return;
  withdraw_state(key);
  copy->held.probationary = true;
  list_state(key);
}

std::optional<NodeId> LowerTier::split(NodeId upper_id) {
  const Node& upper = tree_.node(upper_id);
  const NodeId lower_id = upper.children.empty() ? (*upper.ghost_children.begin()).node
                                                 : (*upper.children.begin()).node;
  NodeCopies* const lower = copies_.find(lower_id);
  if (lower == nullptr || lower->run.state == CopyState::kNone) return std::nullopt;
  const auto cut = static_cast<std::ptrdiff_t>(upper.tokens.size()) / kPageTokens;
  NodeCopies& above = copies_.at(upper_id);
  std::vector<PageId>& pages = lower->run.pages;
  above.run.state = lower->run.state;
  above.run.last_use = lower->run.last_use;
  above.run.pages.assign(pages.begin(), pages.begin() + cut);
  above.children = 1;
  pages.erase(pages.begin(), pages.begin() + cut);
  return above.run.state == CopyState::kReserved ? std::optional(lower_id) : std::nullopt;
}

}  // namespace tasuki::cache
