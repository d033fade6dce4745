#include "cache/prefix_cache.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cache/holder_check.h"
#include "core/errors.h"
#include "core/invariant.h"
#include "core/prefill_cost.h"
#include "tiers/tier_check.h"
#include "tree/tree_check.h"

namespace tasuki::cache {

namespace {

const CacheConfig& validated(const CacheConfig& config) {
  config.validate();
  return config;
}

// Relay the lives of states to the tiers, if there are any.
std::unique_ptr<EvictionPolicy> relayed(const CacheConfig& config,
                                        std::unique_ptr<EvictionPolicy> policy, LifeRelay*& relay) {
  if (config.tiers.empty()) return policy;
  auto made = std::make_unique<LifeRelay>(std::move(policy));
  relay = made.get();
  return made;
}

// Return the match of a request without any cached part.
Match from_nothing(Match match) {
  match.miss_reasons.checkpoint_evicted += match.usable_tokens;
  match.usable_tokens = 0;
  match.checkpoint_kind.reset();
  match.branch_tokens.reset();
  PageMatch& pages = match.in_pages;
  pages.miss_reasons.checkpoint_evicted += pages.usable_tokens;
  pages.usable_tokens = 0;
  pages.checkpoint_kind.reset();
  return match;
}

}  // namespace

PrefixCache::PrefixCache(const CacheConfig& config, std::unique_ptr<EvictionPolicy> policy,
                         std::unique_ptr<PolicyTrials> trials)
    : config_(validated(config)),
      allocator_(config_),
      quarantines_(allocator_),
      tree_(relayed(config_, std::move(policy), relay_), config_),
      observers_(tree_),
      tiers_(relay_ == nullptr
                 ? nullptr
                 : std::make_unique<Tiers>(config_, tree_, observers_.journal(), *relay_)),
      cursors_(tree_),
      interior_(config_, tree_),
      reports_(config_, tree_, tiers_.get(), cursors_),
      reclaimer_(config_, allocator_, tree_, tiers_.get(), observers_),
      admission_(config_, allocator_, tree_, tiers_.get(), reclaimer_, allocations_),
      inserter_(allocator_, tree_, tiers_.get(), observers_, allocations_, interior_, reports_),
      trials_(std::move(trials)) {}

PrefixCache::~PrefixCache() = default;

Found PrefixCache::find(Tokens prompt, std::string_view salt,
                        std::optional<CursorId> cursor) const {
  if (prompt.empty()) throw InvalidArgument("tokens must not be empty");
  std::optional<Position> start;
  if (cursor) start = cursors_.start_of(*cursor, prompt, salt);
  Found found = Matcher(tree_, allocations_, config_.tiers).find(prompt, salt, start);
  if (found.evicted) found.match.evicted = reclaimer_.log().find(*found.evicted);
  return found;
}

Match PrefixCache::match(Tokens prompt, std::string_view salt,
                         std::optional<CursorId> cursor) const {
  return find(prompt, salt, cursor).match;
}

std::int64_t PrefixCache::capacity_tokens(std::int64_t working_slots) const {
  if (working_slots < 0) {
    throw InvalidArgument("working_slots must be 0 or more, not " + std::to_string(working_slots));
  }
  return admission_.most_tokens(working_slots);
}

CacheStats PrefixCache::stats() const {
  CacheStats stats;
  stats.pages = allocator_.page_counts();
  stats.pages.pinned = tree_.pins().pages();
  stats.slots = allocator_.slot_counts();
  stats.slots.pinned = tree_.pins().states();
  stats.slabs_free = allocator_.slabs_free();
  stats.slabs_of_pages = allocator_.slabs_of_pages();
  stats.slabs_of_slots = allocator_.slabs_of_slots();
  stats.slabs_total = config_.slabs;
  stats.nodes = tree_.resident_nodes();
  stats.ghost_nodes = tree_.ghosts().size();
  stats.checkpoints = tree_.states();
  stats.allocations = allocations_.size();
  stats.cursors = cursors_.size();
  stats.evicted_pages = reclaimer_.evicted_pages();
  stats.evicted_checkpoints = reclaimer_.evicted_checkpoints();
  stats.allocated_requests = allocated_requests_;
  stats.prompt_tokens = prompt_tokens_;
  stats.usable_tokens = usable_tokens_;
  stats.miss_reasons = miss_reasons_;
  if (trials_) stats.policies = trials_->scores();
  if (tiers_) {
    for (const auto& tier : tiers_->all()) stats.tiers.push_back(tiers_->counts(tier->id()));
    stats.waiting_writes = tiers_->waiting_writes();
  }
  return stats;
}

void PrefixCache::check_integrity() const {
  allocator_.check();
  check_tree(tree_, clock_);
  check_holders(allocator_, tree_, allocations_, quarantines_);
  if (tiers_) check_tiers(*tiers_);
  require(usable_tokens_ + miss_reasons_.sum() == prompt_tokens_, 6,
          "usable tokens and miss reasons do not add up to the prompts");
}

void PrefixCache::advance_to(std::int64_t now_ms) {
  has_clock_ = true;
  now_ms_ = std::max(now_ms_, now_ms);
}

void PrefixCache::close_cursor(CursorId cursor) {
  const auto end = cursors_.close(cursor);
  if (!end) return;
  tree_.expect_no_use(*end);
  if (tiers_) tiers_->expect_no_use(*end);
}

std::optional<AllocationId> PrefixCache::admit(Tokens prompt, std::string_view salt,
                                               const AllocationTerms& terms,
                                               const AdmissionPlan& plan) {
  ++clock_;
  tree_.policy().advance(now_ms_);
  if (tiers_) tiers_->advance(now_ms_);
  return admission_.admit(prompt, salt, terms, plan, clock_);
}

std::optional<AllocationId> PrefixCache::allocate(Tokens prompt, std::string_view salt,
                                                  const AllocationTerms& terms) {
  admission_.validate(prompt, terms);
  Found found = find(prompt, salt, terms.cursor);
  AdmissionPlan plan{.match = found.match};
  if (found.source) {
    plan.cached_tokens = found.match.usable_tokens;
    plan.standing = found.usable;
    plan.source = found.source;
  }
  if (tiers_ && terms.load_wait) choose_load(found, terms, plan);
  const auto left = interior_.left_prompt(found);
  auto id = admit(prompt, salt, terms, plan);
  // A source checkpoint and scattered pages take extra memory. If they can never fit beside the
  // request, it starts without a cached part instead of waiting for ever.
  if (!id && !admission_.fits_alone(terms, plan)) {
    plan = AdmissionPlan{.match = from_nothing(found.match)};
    id = admit(prompt, salt, terms, plan);
  }
  if (!id) return std::nullopt;
  if (tiers_ ? tiers_->lost() > 0 : reclaimer_.log().count() > 0) interior_.evicted();
  Allocation& allocation = allocations_.at(*id);
  if (plan.load) begin_load(allocation, *plan.load);
  allocation.turns = reports_.used(found, plan.load ? plan.load->state : plan.source);
  allocation.is_sampled = trials_ && trials_->samples(salt, prompt);
  // Copy the match only if a load changes it.
  allocation.match.interior_tokens =
      plan.load ? interior_.place(left, after_loading(plan.match, plan.load->stored))
                : interior_.place(left, plan.match);
  if (!has_clock_) now_ms_ += 1000;
  ++allocated_requests_;
  prompt_tokens_ += plan.match.prompt_tokens;
  usable_tokens_ += plan.match.usable_tokens;
  miss_reasons_ += plan.match.miss_reasons;
  return id;
}

void PrefixCache::choose_load(Found& found, const AllocationTerms& terms,
                              AdmissionPlan& plan) const {
  const std::int64_t prompt = found.match.prompt_tokens;
  const auto rest = [&](std::int64_t from) {
    return prefill_between(config_.attention_cost, from, prompt);
  };
  double least = rest(found.match.usable_tokens);
  for (std::size_t i = 0; i < found.stored.size(); ++i) {
    const StoredState& stored = found.match.stored[i];
    const double cost = *terms.load_wait + stored.cost + rest(stored.boundary);
    if (cost >= least) continue;
    least = cost;
    const std::optional<Position>& arena = found.stored[i].arena;
    plan.cached_tokens = arena ? arena->depth : 0;
    plan.standing = arena;
    plan.source.reset();
    plan.load = PlannedLoad{stored, found.stored[i].state};
  }
  // The load replaces the evicted state, or goes further.
  if (plan.load && found.evicted_boundary <= plan.load->stored.boundary) found.evicted.reset();
}

void PrefixCache::begin_load(Allocation& allocation, const PlannedLoad& load) {
  hand_over(allocation, Owner::kWorking, Owner::kGranted);
  allocation.state = AllocationState::kGranted;
  allocation.latest_state = load.state;
  allocation.load =
      PendingLoad{tiers_->begin_load(load.state, allocation.standing.depth, allocation.id,
                                     allocation.pages, allocation.working_slots.front(), clock_),
                  load.stored};
}

void PrefixCache::end_load(Allocation& allocation, bool landed) {
  hand_over(allocation, Owner::kGranted, Owner::kWorking);
  const StoredState stored = allocation.load->stored;
  allocation.load.reset();
  ++room_version_;
  if (!landed) {
    leave_void(allocation);
    return;
  }
  allocation.state = AllocationState::kWorking;
  const std::int64_t whole = stored.boundary / kPageTokens * kPageTokens;
  if (whole > allocation.standing.depth) {
    stand_at(allocation, {inserter_.insert_path(allocation, whole, clock_), whole});
  }
  allocation.count_shared_pages();
  allocation.cached_tokens = stored.boundary;
  usable_tokens_ -= allocation.match.usable_tokens;
  miss_reasons_ -= allocation.match.miss_reasons;
  allocation.match = after_loading(std::move(allocation.match), stored);
  usable_tokens_ += allocation.match.usable_tokens;
  miss_reasons_ += allocation.match.miss_reasons;
}

// The allocation has KV up to the load's begin and no state there. Its other possible start is no
// longer pinned.
void PrefixCache::leave_void(Allocation& allocation) {
  allocation.state = AllocationState::kVoid;
  allocation.cached_tokens = 0;
  --allocated_requests_;
  prompt_tokens_ -= allocation.match.prompt_tokens;
  usable_tokens_ -= allocation.match.usable_tokens;
  miss_reasons_ -= allocation.match.miss_reasons;
}

std::optional<TierWrite> PrefixCache::next_write() {
  if (!tiers_) return std::nullopt;
  ++clock_;
  tiers_->advance(now_ms_);
  return tiers_->next_write(clock_);
}

WriteLabel PrefixCache::label_of(TransferId write) const {
  if (!tiers_) throw InvalidArgument("there is no tier below the arena");
  return tiers_->label_of(write);
}

bool PrefixCache::restore(TierId tier, const KeptState& kept) {
  if (raw(tier) >= config_.tiers.size()) {
    throw InvalidArgument("restore: there is no tier " + std::to_string(raw(tier)));
  }
  const std::size_t tokens = kept.tokens.size();
  constexpr auto kPage = static_cast<std::size_t>(kPageTokens);
  if (tokens == 0 || kept.pages.size() != (tokens + kPage - 1) / kPage) {
    throw InvalidArgument("restore: " + std::to_string(kept.pages.size()) + " pages of " +
                          std::to_string(tokens) + " tokens");
  }
  if (allocated_requests_ > 0 || allocations_.size() > 0) {
    throw InvalidArgument("restore: the cache has served requests");
  }
  ++clock_;
  ++room_version_;
  return tiers_->restore(tier, kept, clock_);
}

std::optional<AdoptedState> PrefixCache::adopt(TierId tier, std::string_view salt, Tokens tokens,
                                               CheckpointKind kind) {
  if (raw(tier) >= config_.tiers.size()) {
    throw InvalidArgument("adopt: there is no tier " + std::to_string(raw(tier)));
  }
  if (tokens.empty()) throw InvalidArgument("adopt: a state stands behind tokens");
  ++clock_;
  ++room_version_;
  return tiers_->adopt(tier, salt, tokens, kind, clock_);
}

void PrefixCache::acknowledge(TransferId id, bool is_good) {
  if (!tiers_) throw InvalidArgument("there is no tier below the arena");
  ++clock_;
  const auto ended = tiers_->acknowledge(id, is_good, clock_);
  if (!ended) return;
  end_load(allocations_.at(ended->allocation), ended->landed);
}

std::optional<AllocationId> PrefixCache::allocate_to_receive(Tokens prompt, std::string_view salt,
                                                             const AllocationTerms& terms) {
  admission_.validate(prompt, terms);
  const Found found = find(prompt, salt, terms.cursor);
  AdmissionPlan plan{.match = found.match};
  if (found.kv) {
    plan.cached_tokens = found.kv->depth;
    plan.standing = found.kv;
  }
  auto id = admit(prompt, salt, terms, plan);
  if (!id && !admission_.fits_alone(terms, plan)) {
    id = admit(prompt, salt, terms, AdmissionPlan{.match = found.match});
  }
  return id;
}

std::optional<AllocationId> PrefixCache::allocate_to_send(Tokens prompt, std::string_view salt) {
  const Found found = find(prompt, salt, std::nullopt);
  if (!found.source) return std::nullopt;
  const AdmissionPlan plan{.match = found.match,
                           .cached_tokens = found.match.usable_tokens,
                           .standing = found.usable,
                           .source = found.source};
  const AllocationTerms nothing{found.usable.depth, 0, std::nullopt};
  return admit(prompt, salt, nothing, plan);
}

bool PrefixCache::extend(AllocationId id, std::int64_t capacity) {
  Allocation& allocation = allocations_.working(id, "extend");
  const std::int64_t pages = admission_.pages_lacking(allocation, capacity);
  if (pages <= 0) return true;
  ++clock_;
  return admission_.extend(allocation, pages, clock_);
}

void PrefixCache::append(AllocationId id, Tokens tokens) {
  Allocation& allocation = allocations_.at(id);
  if (allocation.state != AllocationState::kGranted) allocations_.working(id, "append");
  allocation.kept.insert(allocation.kept.end(), tokens.begin(), tokens.end());
}

std::optional<SlotId> PrefixCache::take_checkpoint_slot(AllocationId id) {
  Allocation& allocation = allocations_.at(id);
  if (!allocation.load) allocations_.working(id, "take_checkpoint_slot");
  ++clock_;
  if (!reclaimer_.make_room(0, 1, id, clock_)) return std::nullopt;
  const SlotId slot = allocator_.take_slot();
  allocation.destination_slots.push_back(slot);
  return slot;
}

void PrefixCache::check_insertable(const Allocation& allocation, std::int64_t boundary,
                                   std::optional<SlotId> slot) const {
  const std::int64_t whole = boundary / kPageTokens * kPageTokens;
  const auto refuse = [boundary](const std::string& why) {
    throw InvalidArgument("insert: boundary " + std::to_string(boundary) + why);
  };
  if (boundary < 1 || boundary > allocation.tokens()) {
    refuse(" is not in the allocation's tokens 1.." + std::to_string(allocation.tokens()));
  }
  if (boundary > allocation.capacity_tokens()) {
    refuse(" is beyond the allocation's pages: extend it first");
  }
  if (boundary != whole && !slot) {
    refuse(" is inside a page: it needs a slot");
  }
  if (boundary != whole && whole < allocation.first_kept) {
    refuse(" ends before what the allocation computed");
  }
  if (boundary != whole && !allocation.own[static_cast<std::size_t>(whole / kPageTokens)]) {
    refuse(" is inside a page that the allocation inserted whole already");
  }
  if (slot && !allocation.holds_slot(*slot)) {
    throw InvalidArgument("insert: slot " + std::to_string(raw(*slot)) +
                          " is neither a working nor a destination slot of the allocation");
  }
}

void PrefixCache::insert(AllocationId id, std::int64_t boundary, std::optional<SlotId> slot,
                         CheckpointKind kind, TurnHint hint) {
  Allocation& allocation = allocations_.working(id, "insert");
  check_insertable(allocation, boundary, slot);
  ++clock_;
  ++room_version_;
  Position place = cover_path(allocation, boundary / kPageTokens * kPageTokens);
  if (slot) {
    place.node =
        inserter_.insert_state(allocation, place.node, *slot, {boundary, kind, hint}, clock_);
  }
  if (place.depth >= allocation.standing.depth) stand_at(allocation, place);
  allocation.count_shared_pages();
}

std::optional<std::pair<PageId, PageId>> PrefixCache::insert_midway(
    AllocationId id, std::int64_t boundary, SlotId slot, CheckpointKind kind, TurnHint hint) {
  std::optional<std::pair<PageId, PageId>> copy;
  if (boundary % kPageTokens == 0) {
    insert(id, boundary, slot, kind, hint);
  } else {
    Allocation& allocation = allocations_.working(id, "insert_midway");
    check_insertable(allocation, boundary, slot);
    ++clock_;
    ++room_version_;
    Position place = cover_path(allocation, boundary / kPageTokens * kPageTokens);
    // The allocation keeps its path, even if the page needed an eviction.
    if (place.depth >= allocation.standing.depth) stand_at(allocation, place);
    allocation.count_shared_pages();
    if (!reclaimer_.make_room(1, 0, id, clock_)) {
      allocation.give_slot(slot);
      allocator_.give_back(slot, Owner::kWorking);
      return std::nullopt;
    }
    const PageId source = allocation.pages[static_cast<std::size_t>(place.depth / kPageTokens)];
    const auto [node, page] =
        inserter_.insert_midway(allocation, place.node, slot, {boundary, kind, hint}, clock_);
    place.node = node;
    if (place.depth >= allocation.standing.depth) stand_at(allocation, place);
    if (page) copy = {source, *page};
  }
  if (kind == CheckpointKind::kMessageEnd) replace_source(allocations_.at(id));
  return copy;
}

void PrefixCache::replace_source(Allocation& allocation) const {
  if (!allocation.source || !allocation.source->tail) return;
  // If the page before can have no state, or has one, this is its prompt's only other state.
  const Node& host = tree_.node(allocation.source->node);
  const bool has_neighbour = host.is_root() || host.checkpoint.has_value();
  if (has_neighbour && tree_.state(*allocation.source).kind == CheckpointKind::kMessageEnd) {
    allocation.replaced_state = allocation.source;
  }
}

Position PrefixCache::cover_path(Allocation& allocation, std::int64_t whole) {
  if (whole > allocation.standing.depth) {
    return {inserter_.insert_path(allocation, whole, clock_), whole};
  }
  return {tree_.cover(allocation.standing.node, whole).node, whole};
}

void PrefixCache::stand_at(Allocation& allocation, Position place) {
  const NodeId before = allocation.standing.node;
  if (before != place.node) {
    tree_.pins().pin(place.node, allocation.id, clock_);
    tree_.pins().unpin(before, allocation.id);
  }
  allocation.standing = place;
  if (allocation.cursor) cursors_.move(*allocation.cursor, place);
}

void PrefixCache::release(AllocationId id) {
  Allocation& allocation = allocations_.at(id);
  if (allocation.state == AllocationState::kGranted) allocations_.working(id, "release");
  ++clock_;
  try_policies(allocation);
  allocation.for_each_own_page(
      [this](PageId page) { allocator_.give_back(page, Owner::kWorking); });
  for (const SlotId slot : allocation.working_slots) allocator_.give_back(slot, Owner::kWorking);
  end(allocation);
}

void PrefixCache::try_policies(const Allocation& allocation) {
  if (!allocation.is_sampled || allocation.inserted.empty()) return;
  Served served{*tree_.node(allocation.root).salt,
                tree_.tokens_to({allocation.standing.node, allocation.first_kept}),
                allocation.match.prompt_tokens, allocation.inserted, now_ms_};
  served.tokens.insert(served.tokens.end(), allocation.kept.begin(), allocation.kept.end());
  trials_->serve(served);
  tree_.policy().follow(trials_->best());
}

void PrefixCache::end(const Allocation& allocation) {
  ++room_version_;
  for (const SlotId slot : allocation.destination_slots) {
    allocator_.give_back(slot, Owner::kWorking);
  }
  for (const StateKey& state : allocation.pinned_states) tree_.pins().unpin_state(state);
  if (allocation.replaced_state) reclaimer_.drop(*allocation.replaced_state, clock_);
  tree_.pins().unpin(allocation.standing.node, allocation.id);
  tree_.close_root_if_bare(allocation.root);
  allocations_.erase(allocation.id);
}

void PrefixCache::hand_over(const Allocation& allocation, Owner from, Owner to) {
  allocation.for_each_own_page([&](PageId page) { allocator_.hand_over(page, from, to); });
  for (const SlotId slot : allocation.working_slots) allocator_.hand_over(slot, from, to);
}

void PrefixCache::grant(AllocationId id) {
  Allocation& allocation = allocations_.working(id, "grant");
  ++clock_;
  hand_over(allocation, Owner::kWorking, Owner::kGranted);
  allocation.state = AllocationState::kGranted;
}

void PrefixCache::accept_received(AllocationId id) {
  Allocation& allocation = allocations_.granted(id, "accept_received");
  if (allocation.load) {
    throw InvalidArgument("accept_received: allocation " + std::to_string(raw(id)) +
                          " is being loaded: acknowledge the transfer");
  }
  ++clock_;
  hand_over(allocation, Owner::kGranted, Owner::kWorking);
  allocation.state = AllocationState::kWorking;
}

QuarantineId PrefixCache::quarantine(AllocationId id) {
  Allocation& allocation = allocations_.granted(id, "quarantine");
  ++clock_;
  if (allocation.load) tiers_->abandon_load(allocation.load->plan.id);
  QuarantineTable::Quarantine held{{}, allocation.working_slots};
  // A forward behind a load may still write these slots.
  for (const SlotId slot : allocation.destination_slots) {
    allocator_.hand_over(slot, Owner::kWorking, Owner::kGranted);
    held.slots.push_back(slot);
  }
  allocation.destination_slots.clear();
  allocation.for_each_own_page([&held](PageId page) { held.pages.push_back(page); });
  const QuarantineId quarantine = quarantines_.add(std::move(held));
  end(allocation);
  return quarantine;
}

void PrefixCache::free_quarantined(QuarantineId id) {
  quarantines_.free(id);
  ++clock_;
  ++room_version_;
}

std::optional<TreeView> PrefixCache::view(std::optional<NodeName> under, std::int64_t limit) {
  if (limit < 1) {
    throw InvalidArgument("limit must be at least 1 node, not " + std::to_string(limit));
  }
  observers_.census().take();
  return view_tree(tree_, observers_.census(), under, limit, clock_);
}

std::optional<NodeName> PrefixCache::node_at(Tokens tokens, std::string_view salt) const {
  const Found found = find(tokens, salt, std::nullopt);
  std::optional<NodeId> node = tree_.root(salt);
  if (found.kv) node = tree_.cover(found.kv->node, found.kv->depth).node;
  if (!node) return std::nullopt;
  return NodeName{*node, tree_.node(*node).serial};
}

std::vector<HeldState> PrefixCache::most_valuable(std::int64_t limit) const {
  if (limit < 1) {
    throw InvalidArgument("limit must be at least 1 state, not " + std::to_string(limit));
  }
  return tasuki::cache::most_valuable(tree_, cursors_, limit);
}

std::int64_t PrefixCache::flush() {
  ++clock_;
  const std::int64_t before = tree_.resident_nodes();
  const std::int64_t standing = tree_.pages() + tree_.states();
  const std::int64_t pinned = tree_.pins().pages() + tree_.pins().states();
  const bool stood = standing > 0 || (tiers_ && tiers_->holds_any());
  const bool clears = stood && pinned == 0 && !(tiers_ && tiers_->is_read());
  if (clears) journal().begin_clearing();
  reclaimer_.evict_all(clock_);
  if (tiers_) tiers_->drop_all(clock_);
  if (clears) journal().end_clearing();
  tree_.forget_ghosts();
  if (trials_) trials_->flush();
  return before - tree_.resident_nodes();
}

}  // namespace tasuki::cache
