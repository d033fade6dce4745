#include "tiers/tiers.h"

#include <algorithm>
#include <ranges>
#include <string>

#include "core/errors.h"
#include "policy/policies.h"

namespace tasuki::cache {

namespace {

// Most waiting names visited in one call before one can begin.
constexpr std::int64_t kMostLooked = 64;
// Limit of writes from a tier to the next in flight; further victims are dropped.
constexpr std::size_t kMostDemotions = 64;
// Limit of transfers in flight while writing ahead.
constexpr std::size_t kMostBesides = 2;

std::int64_t pages_of(const Node& node) {
  return static_cast<std::int64_t>(node.tokens.size()) / kPageTokens;
}

}  // namespace

Tiers::Tiers(const CacheConfig& config, RadixTree& tree, EventJournal& journal, LifeRelay& lives)
    : config_(config), tree_(tree), journal_(journal), lives_(lives) {
  for (std::size_t place = 0; place < config.tiers.size(); ++place) {
    const auto tier = static_cast<TierId>(place);
    tiers_.push_back(
        std::make_unique<LowerTier>(config, tier, make_policy(config.policy, lives), tree));
    lives.relay_to(tiers_.back()->policy());
    budgets_.emplace_back(config.tiers[place].pages_a_second);
  }
  counts_.resize(tiers_.size());
  ahead_.resize(tiers_.size());
}

TierCounts Tiers::counts(TierId tier) const {
  TierCounts counts = counts_[raw(tier)];
  const SlabAllocator& allocator = at(tier).allocator();
  counts.pages = allocator.page_counts();
  counts.slots = allocator.slot_counts();
  counts.slabs_free = allocator.slabs_free();
  counts.slabs_total = at(tier).config().slabs;
  counts.budget_pages = budgets_[raw(tier)].left();
  return counts;
}

bool Tiers::is_read() const {
  return std::ranges::any_of(transfers_, [](const auto& entry) {
    const Transfer& transfer = entry.second;
    if (const auto* write = std::get_if<WriteInFlight>(&transfer.what)) {
      return write->from.has_value();
    }
    return !std::get<LoadInFlight>(transfer.what).is_abandoned;
  });
}

bool Tiers::holds_any() const {
  return std::ranges::any_of(tiers_, [](const auto& tier) {
    const SlabAllocator& allocator = tier->allocator();
    return allocator.page_counts().tree + allocator.slot_counts().tree > 0;
  });
}

void Tiers::advance(std::int64_t now_ms) {
  for (WriteBudget& budget : budgets_) budget.advance(now_ms);
}

void Tiers::state_stored(const StateKey& state) {
  if ((tree_.state_below(state).tiers & bit_of(TierId{})) != 0) return;
  queue_.push({state, tree_.node(state.node).serial});
}

void Tiers::split(NodeId upper) {
  for (const auto& tier : tiers_) {
    const auto lower = tier->split(upper);
    if (!lower) continue;
    for (auto& [id, transfer] : transfers_) {
      auto* const write = std::get_if<WriteInFlight>(&transfer.what);
      if (write == nullptr || write->is_abandoned || write->to != tier->id()) continue;
      const auto place = std::ranges::find(write->runs, *lower);
      if (place != write->runs.end()) write->runs.insert(place, upper);
    }
  }
}

WriteInFlight* Tiers::write_of(TierId to, const StateKey& state) {
  for (auto& [id, transfer] : transfers_) {
    auto* const write = std::get_if<WriteInFlight>(&transfer.what);
    if (write != nullptr && !write->is_abandoned && write->to == to && write->state == state) {
      return write;
    }
  }
  return nullptr;
}

void Tiers::leaving(const EvictionItem& item) {
  if (item.kind == EvictionKind::kLeafPages) return;
  const StateKey state{item.node, item.tail};
  const StateCopy* const copy = at(TierId{}).copies().state(state);
  if (copy == nullptr || copy->state != CopyState::kReserved) return;
  abandon(*write_of(TierId{}, state));
}

void Tiers::moving(NodeId home) {
  const NodeCopies* const held = at(TierId{}).copies().find(home);
  if (held == nullptr) return;
  for (auto& [id, transfer] : transfers_) {
    auto* const write = std::get_if<WriteInFlight>(&transfer.what);
    if (write == nullptr || write->is_abandoned || write->from) continue;
    if (write->state.node == home || std::ranges::find(write->runs, home) != write->runs.end()) {
      abandon(*write);
      queue_.push({write->state, tree_.node(write->state.node).serial});
    }
  }
}

std::vector<TierIds> Tiers::cancel(const WriteInFlight& write) {
  LowerTier& tier = at(write.to);
  std::vector<TierIds> ids{tier.cancel_state(write.state)};
  for (const NodeId run : std::views::reverse(write.runs)) ids.push_back(tier.cancel_run(run));
  return ids;
}

// Drop the copy of a write without its source; no caller waits for it.
void Tiers::abandon(WriteInFlight& write) {
  write.orphans = cancel(write);
  write.is_abandoned = true;
  ++counts_[raw(write.to)].abandoned_writes;
}

void Tiers::used(const StateKey& state, Tick now) {
  for (const auto& tier : tiers_) tier->touch(state, now);
  for (std::size_t place = 1; place < tiers_.size(); ++place) {
    // The state was refused while nothing was known of its use.
    if (config_.tiers[place].filling != Filling::kAhead || !budgets_[place].is_bounded()) continue;
    if (tiers_[place - 1]->copies().state(state) == nullptr) continue;
    if (tiers_[place]->copies().state(state) != nullptr) continue;
    ahead_[place].push({state, tree_.node(state.node).serial});
  }
}

void Tiers::put_on_probation(const StateKey& state) {
  for (const auto& tier : tiers_) tier->put_on_probation(state);
}

void Tiers::expect_no_use(const StateKey& state) {
  if (tree_.state_below(state).tiers == 0) return;
  tree_.policy().ended(state);
  put_on_probation(state);
}

std::optional<TierWrite> Tiers::next_write(Tick now) {
  const std::int64_t looked = std::min(queue_.size(), kMostLooked);
  for (std::int64_t i = 0; i < looked && begun_.empty(); ++i) {
    const WriteQueue::Waiting next = queue_.front();
    queue_.pop();
    const StateKey& state = next.state;
    if (!tree_.alive(state.node, next.serial) || !tree_.is_resident(state)) continue;
    if (at(TierId{}).copies().state(state) != nullptr) continue;
    const Begun begun = begin_write(std::nullopt, TierId{}, state, now);
    if (begun == Begun::kLater) queue_.push(next);
    if (begun == Begun::kNever) ++counts_.front().refused_writes;
  }
  for (std::size_t place = 1; place < tiers_.size() && begun_.empty(); ++place) {
    begin_ahead(static_cast<TierId>(place), now);
  }
  if (begun_.empty()) return std::nullopt;
  TierWrite write = std::move(begun_.front());
  begun_.pop_front();
  return write;
}

void Tiers::begin_ahead(TierId to, Tick now) {
  WriteQueue& waiting = ahead_[raw(to)];
  const auto from = static_cast<TierId>(raw(to) - 1);
  const std::int64_t looked = std::min(waiting.size(), kMostLooked);
  for (std::int64_t i = 0; i < looked && begun_.empty(); ++i) {
    if (transfers_.size() >= kMostBesides || !budgets_[raw(to)].is_open()) return;
    const WriteQueue::Waiting next = waiting.front();
    waiting.pop();
    const StateKey& state = next.state;
    if (!tree_.alive(state.node, next.serial)) continue;
    if (at(from).copies().state(state) == nullptr || at(to).copies().state(state) != nullptr) {
      continue;
    }
    const auto item = at(from).state_item(state);
    if (!item) {
      // Somebody reads it.
      waiting.push(next);
      continue;
    }
    if (!is_worth_writing(to, from, *item)) {
      ++counts_[raw(to)].refused_writes;
      continue;
    }
    at(from).hold_state(state);
    const Begun begun = begin_write(from, to, state, now);
    if (begun == Begun::kYes) return;
    at(from).let_state(state);
    if (begun == Begun::kLater) waiting.push(next);
    if (begun == Begun::kNever) ++counts_[raw(to)].refused_writes;
  }
}

void Tiers::end_unstarted(TransferId id, Tick now) {
  transfers_.at(id).awaited = 1;
  acknowledge(id, false, now);
}

Tiers::Begun Tiers::begin_write(std::optional<TierId> from, TierId to, const StateKey& state,
                                Tick now) {
  LowerTier& tier = at(to);
  std::vector<NodeId> runs;
  std::int64_t pages = state.tail ? 1 : 0;
  const Node* node = &tree_.node(state.node);
  for (; !node->is_root(); node = &tree_.node(*node->parent)) {
    const CopyState held = tier.copies().run_state(node->id);
    // Another state's write brings this run, so this state's copy is usable only after it.
    if (held == CopyState::kReserved) return Begun::kLater;
    if (held != CopyState::kNone) break;
    runs.push_back(node->id);
    pages += pages_of(*node);
  }
  std::ranges::reverse(runs);
  const std::int64_t path = tree_.node(state.node).depth / kPageTokens + (state.tail ? 1 : 0);
  if (!tier.could_hold(path, 1)) return Begun::kNever;
  const std::optional<NodeId> above = node->is_root() ? std::nullopt : std::optional(node->id);
  if (above) tier.hold_run(*above);
  const bool fits = make_room(to, pages, 1, now);
  if (above) tier.let_run(*above);
  if (!fits) return transfers_.empty() ? Begun::kNever : Begun::kLater;

  const StateCopy like =
      from ? *at(*from).copies().state(state)
           : StateCopy{
                 CopyState::kNone, tree_.state(state),
                 state.tail ? tree_.node(state.node).tails.find(*state.tail)->page : std::nullopt};
  TierWrite write{static_cast<TransferId>(next_transfer_++), from, to, {}, {}};
  // Take the slot first: pages may live in gaps, a slot needs a whole slab.
  tier.reserve_state(state, like);
  for (const NodeId run : runs) {
    tier.reserve_run(run);
    const std::vector<PageId>& source =
        from ? at(*from).copies().find(run)->run.pages : tree_.node(run).pages;
    const std::vector<PageId>& target = tier.copies().find(run)->run.pages;
    for (std::size_t i = 0; i < source.size(); ++i) write.pages.emplace_back(source[i], target[i]);
  }
  const StateCopy& copy = *tier.copies().state(state);
  if (copy.page) write.pages.emplace_back(*like.page, *copy.page);
  write.slot = {like.held.slot, copy.held.slot};
  budgets_[raw(to)].spend(pages + config_.pages_per_slab);
  transfers_.emplace(
      write.id, Transfer{WriteInFlight{from, to, state, std::move(runs), pages}, config_.ranks});
  begun_.push_back(std::move(write));
  return Begun::kYes;
}

bool Tiers::make_room(TierId tier, std::int64_t pages, std::int64_t slots, Tick now) {
  while (!at(tier).fits(pages, slots)) {
    const auto item = at(tier).victim();
    if (!item) return false;
    if (!demote(tier, *item, now)) drop(tier, *item, now);
  }
  return true;
}

bool Tiers::demote(TierId tier, const EvictionItem& item, Tick now) {
  const auto next = static_cast<TierId>(raw(tier) + 1);
  if (raw(next) >= tiers_.size() || item.kind == EvictionKind::kLeafPages) return false;
  const StateKey state{item.node, item.tail};
  if (at(next).copies().state(state) != nullptr) return false;
  if (!is_worth_writing(next, tier, item)) {
    ++counts_[raw(next)].refused_writes;
    return false;
  }
  at(tier).leave(state);
  if (begin_write(tier, next, state, now) == Begun::kYes) return true;
  at(tier).stay(state);
  ++counts_[raw(next)].refused_writes;
  return false;
}

bool Tiers::is_worth_writing(TierId to, TierId from, const EvictionItem& item) const {
  const WriteBudget& budget = budgets_[raw(to)];
  if (!budget.is_open() || transfers_.size() >= kMostDemotions) return false;
  // With a write budget, skip a state if another one behind or near it serves as well.
  if (budget.is_bounded() &&
      (item.probationary || is_served_deeper(to, from, {item.node, item.tail}))) {
    return false;
  }
  const auto displaced = at(to).victim();
  if (at(to).allocator().slabs_free() > 0 || !displaced) return true;
  const auto worth = at(from).policy().score(item);
  const auto price = at(to).policy().score(*displaced);
  return !worth || !price || *worth > *price;
}

// The deeper state may itself be on probation, as a short answer's end is beside the prompt's. Then
// neither would be written.
bool Tiers::is_served_deeper(TierId to, TierId from, const StateKey& state) const {
  if (!lives_.is_superseded(state)) return false;
  std::vector<NodeId> order{state.node};
  for (std::size_t next = 0; next < order.size(); ++next) {
    const NodeId id = order[next];
    for (const TierId tier : {from, to}) {
      const NodeCopies* const held = at(tier).copies().find(id);
      if (held == nullptr) continue;
      if (next > 0 && held->checkpoint && !held->checkpoint->held.probationary) return true;
      for (const auto& [tail, copy] : held->tails) {
        if (StateKey{id, tail} != state && !copy.held.probationary) return true;
      }
    }
    const auto follow = [&](const ChildList& children) {
      for (const ChildEntry child : children) {
        if (order.size() >= static_cast<std::size_t>(kMostLooked)) return;
        if ((tree_.node(child.node).kv_below & (bit_of(from) | bit_of(to))) != 0) {
          order.push_back(child.node);
        }
      }
    };
    follow(tree_.node(id).children);
    follow(tree_.node(id).ghost_children);
  }
  return false;
}

bool Tiers::is_last_place(TierId tier, const EvictionItem& item) const {
  if (item.kind == EvictionKind::kLeafPages) {
    const Node& node = tree_.node(item.node);
    return !node.resident && node.kv_below == bit_of(tier);
  }
  const StateKey state{item.node, item.tail};
  return !tree_.is_resident(state) && tree_.state_below(state).tiers == bit_of(tier);
}

void Tiers::drop(TierId tier, const EvictionItem& item, Tick now) {
  TierCounts& counts = counts_[raw(tier)];
  const NodeCopies& held = *at(tier).copies().find(item.node);
  if (item.kind == EvictionKind::kLeafPages) {
    counts.dropped_pages += static_cast<std::int64_t>(held.run.pages.size());
  } else {
    ++counts.dropped_slots;
    counts.dropped_pages += item.tail ? 1 : 0;
  }
  const bool is_lost = is_last_place(tier, item);
  if (is_lost) {
    ++lost_;
    journal_.evicting(item);
  }
  at(tier).drop(item, is_lost, now);
  if (is_lost || item.kind == EvictionKind::kLeafPages) return;
  const StateKey state{item.node, item.tail};
  const TierId nearest = nearest_of(tree_.state_below(state).tiers);
  if (!tree_.is_resident(state) && raw(nearest) > raw(tier)) {
    journal_.state_moved(state, place_of(nearest));
  }
}

TierLoad Tiers::begin_load(const StateKey& state, std::int64_t arena_tokens,
                           AllocationId allocation, std::span<const PageId> targets, SlotId target,
                           Tick now) {
  used(state, now);
  const TierId from = nearest_of(tree_.state_below(state).tiers);
  LoadInFlight held{allocation, from, state};
  TierLoad load{static_cast<TransferId>(next_transfer_++), {}, from, {}, target, 0};
  for (const Node* node = &tree_.node(state.node); node->depth > arena_tokens;
       node = &tree_.node(*node->parent)) {
    const TierId tier = nearest_of(node->kv_below);
    const std::vector<PageId>& pages = at(tier).copies().find(node->id)->run.pages;
    const auto first = static_cast<std::size_t>(node->start() / kPageTokens);
    for (std::size_t i = pages.size(); i-- > 0;) {
      load.pages.push_back({tier, pages[i], targets[first + i]});
    }
    held.pages[raw(tier)] += static_cast<std::int64_t>(pages.size());
    const auto is_deeper = [&](const auto& run) { return run.first == tier; };
    if (std::ranges::none_of(held.runs, is_deeper)) held.runs.emplace_back(tier, node->id);
  }
  std::ranges::reverse(load.pages);
  const StateCopy& copy = *at(from).copies().state(state);
  load.source = copy.held.slot;
  load.boundary = copy.held.boundary;
  if (copy.page) {
    const std::int64_t whole = tree_.node(state.node).depth / kPageTokens;
    load.pages.push_back({from, *copy.page, targets[static_cast<std::size_t>(whole)]});
    ++held.pages[raw(from)];
  }
  at(from).hold_state(state);
  for (const auto& [tier, run] : held.runs) at(tier).hold_run(run);
  transfers_.emplace(load.id, Transfer{std::move(held), config_.ranks});
  return load;
}

void Tiers::let_go(const LoadInFlight& load) {
  at(load.from).let_state(load.state);
  for (const auto& [tier, run] : load.runs) at(tier).let_run(run);
}

void Tiers::abandon_load(TransferId id) {
  const auto found = transfers_.find(id);
  if (found == transfers_.end()) return;
  auto& load = std::get<LoadInFlight>(found->second.what);
  let_go(load);
  load.is_abandoned = true;
}

std::optional<EndedLoad> Tiers::acknowledge(TransferId id, bool is_good, Tick now) {
  const auto found = transfers_.find(id);
  if (found == transfers_.end()) {
    throw InvalidArgument("transfer " + std::to_string(raw(id)) + " has ended or never began");
  }
  found->second.is_good = found->second.is_good && is_good;
  if (--found->second.awaited > 0) return std::nullopt;
  const Transfer ended = std::move(found->second);
  transfers_.erase(found);
  if (const auto* write = std::get_if<WriteInFlight>(&ended.what)) {
    settle(*write, ended.is_good, now);
    return std::nullopt;
  }
  const auto& load = std::get<LoadInFlight>(ended.what);
  if (load.is_abandoned) return std::nullopt;
  let_go(load);
  if (ended.is_good) {
    ++counts_[raw(load.from)].loaded_slots;
    for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
      counts_[tier].loaded_pages += load.pages[tier];
    }
  } else {
    ++counts_[raw(load.from)].failed_transfers;
    // No later load tries it again. Another load may read it now, and finds out by itself.
    if (const auto item = at(load.from).state_item(load.state)) drop(load.from, *item, now);
  }
  return EndedLoad{load.allocation, ended.is_good};
}

void Tiers::settle(const WriteInFlight& write, bool is_good, Tick now) {
  LowerTier& tier = at(write.to);
  TierCounts& counts = counts_[raw(write.to)];
  if (write.is_abandoned) {
    for (const TierIds& ids : write.orphans) tier.give_back(ids);
    return;
  }
  if (is_good) {
    for (const NodeId run : write.runs) tier.settle_run(run, now);
    tier.settle_state(write.state, now);
    counts.written_pages += write.pages;
    ++counts.written_slots;
    const auto next = static_cast<std::size_t>(raw(write.to)) + 1;
    if (next < tiers_.size() && config_.tiers[next].filling == Filling::kAhead) {
      ahead_[next].push({write.state, tree_.node(write.state.node).serial});
    }
  } else {
    ++counts.failed_transfers;
    for (const TierIds& ids : cancel(write)) tier.give_back(ids);
  }
  if (!write.from) return;
  LowerTier& source = at(*write.from);
  if (source.copies().state(write.state)->state != CopyState::kLeaving) {
    source.let_state(write.state);
    return;
  }
  // The write was to make room, so drop the copy above unless a load reads it.
  source.stay(write.state);
  if (const auto item = source.state_item(write.state)) drop(*write.from, *item, now);
}

void Tiers::drop_all(Tick now) {
  queue_.clear();
  for (WriteQueue& waiting : ahead_) waiting.clear();
  // These writes were not handed out yet, so no caller will acknowledge them.
  for (const TierWrite& write : std::exchange(begun_, {})) end_unstarted(write.id, now);
  for (const auto& tier : tiers_) {
    while (const auto item = tier->victim()) drop(tier->id(), *item, now);
  }
}

}  // namespace tasuki::cache
