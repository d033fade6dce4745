// Leases of a HybridTree: admission, growth, hand-over, end.
#include <algorithm>
#include <utility>

#include "cpp_cache/errors.h"
#include "cpp_cache/hybrid_tree.h"

namespace tasuki::cache {

namespace {

std::int64_t pages_for(std::int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

// Far beyond any arena: keeps sums of sizes from overflowing.
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 48;

// Answers rarely grow longer: beyond it, memory for tokens to come is not set aside.
constexpr std::int64_t kMostForeseen = 4096;

void require_at_least(std::string_view name, std::int64_t value, std::int64_t least) {
  if (value >= least && value <= kMaxTokens) return;
  throw InvalidArgument(std::string(name) + " must be at least " + std::to_string(least) +
                        " and at most 2^48, not " + std::to_string(value));
}

}  // namespace

const Lease& HybridTree::lease_of(LeaseId id) const {
  const auto found = leases_.find(id);
  if (found == leases_.end()) {
    throw InvalidArgument("lease " + std::to_string(raw(id)) + " was released");
  }
  return found->second;
}

Lease& HybridTree::live(LeaseId id) {
  lease_of(id);
  return leases_.find(id)->second;
}

Lease& HybridTree::working(LeaseId id, std::string_view verb) {
  Lease& lease = live(id);
  const std::string name = std::string(verb) + ": lease " + std::to_string(raw(id));
  if (lease.state == LeaseState::kGranted) {
    throw InvalidArgument(name + " is granted to a sender: settle or quarantine it first");
  }
  if (lease.state == LeaseState::kClosed) {
    throw InvalidArgument(name + " published a tail: only release may follow");
  }
  return lease;
}

void HybridTree::validate(Tokens prompt, const LeaseTerms& terms) const {
  if (prompt.empty()) throw InvalidArgument("tokens must not be empty");
  require_at_least("capacity_tokens", terms.capacity_tokens,
                   static_cast<std::int64_t>(prompt.size()));
  require_at_least("working_slots", terms.working_slots, 0);
  check_possible(terms.capacity_tokens, terms.working_slots);
}

void HybridTree::check_possible(std::int64_t capacity, std::int64_t working_slots) const {
  const std::int64_t most = capacity_tokens(working_slots);
  if (pages_for(capacity) * kPageTokens <= most && working_slots <= config_.slabs) return;
  throw ImpossibleRequest(
      std::to_string(capacity) + " tokens beside " + std::to_string(working_slots) +
      " working slots never fit this arena of " + std::to_string(config_.slabs) +
      " slabs: at most " + std::to_string(most) + " tokens do");
}

std::int64_t HybridTree::own_pages(const LeaseTerms& terms, const Plan& plan) const {
  const std::int64_t shared = plan.standing ? plan.standing->depth / kPageTokens : 0;
  return pages_for(terms.capacity_tokens) - shared;
}

bool HybridTree::fits_alone(const LeaseTerms& terms, const Plan& plan) const {
  std::vector<bool> blocked(static_cast<std::size_t>(config_.slabs));
  const auto block = [&](std::int64_t slab) { blocked[static_cast<std::size_t>(slab)] = true; };
  std::int64_t held = 0;
  if (plan.standing) {
    // The pin protects the standing node to its end and all above it.
    const Node& node = tree_.node(plan.standing->node);
    for (const PageId page : tree_.pages_to({node.id, node.depth})) {
      block(allocator_.slab_of(page));
      ++held;
    }
  }
  if (plan.source) {
    block(raw(tree_.state(*plan.source).slot));
    held += config_.pages_per_slab;
    if (plan.source->tail) {
      const Tail* tail = tree_.node(plan.source->node).find_tail(*plan.source->tail);
      block(allocator_.slab_of(*tail->page));
      ++held;
    }
  }
  const std::int64_t room = (config_.slabs - terms.working_slots) * config_.pages_per_slab - held;
  return own_pages(terms, plan) <= room &&
         terms.working_slots <= config_.slabs - std::ranges::count(blocked, true);
}

std::optional<LeaseId> HybridTree::admit(Tokens prompt, std::string_view salt,
                                         const LeaseTerms& terms, const Plan& plan) {
  ++clock_;
  tree_.policy().advance(now_ms_);
  const NodeId root = tree_.open_root(salt);
  const Position standing = plan.standing.value_or(Position{root, 0});
  const std::int64_t own = own_pages(terms, plan);
  const auto id = static_cast<LeaseId>(next_lease_);
  tree_.pin(standing.node, id, clock_);
  if (plan.source) tree_.pin_state(*plan.source);
  if (!make_room(own, terms.working_slots, id)) {
    if (plan.source) tree_.unpin_state(*plan.source);
    tree_.unpin(standing.node, id);
    tree_.close_root_if_bare(root);
    return std::nullopt;
  }
  ++next_lease_;

  const auto prompt_end = static_cast<std::int64_t>(prompt.size());
  Lease lease{.id = id,
              .generation = raw(id),
              .root = root,
              .match = plan.match,
              .cached_tokens = plan.cached_tokens,
              .standing = standing,
              .first_kept = standing.depth,
              .cursor = terms.cursor,
              .latest_state = plan.source};
  // The answer is appended within the capacity: growing by doubling would copy the prompt again.
  lease.kept.reserve(static_cast<std::size_t>(
      std::min(terms.capacity_tokens, prompt_end + kMostForeseen) - standing.depth));
  lease.kept.assign(prompt.begin() + standing.depth, prompt.end());
  lease.pages = tree_.pages_to(standing, own);
  lease.shared_pages = static_cast<std::int64_t>(lease.pages.size());
  // Slots first: pages may live in gaps, a slot needs a whole slab.
  for (std::int64_t i = 0; i < terms.working_slots; ++i) {
    lease.working_slots.push_back(allocator_.take_slot());
  }
  const std::vector<PageId> taken = allocator_.take_pages(own);
  lease.pages.insert(lease.pages.end(), taken.begin(), taken.end());
  lease.own.assign(lease.pages.size(), true);
  std::fill_n(lease.own.begin(), lease.shared_pages, false);
  if (plan.source) {
    tree_.touch(*plan.source, clock_);
    lease.pinned_states.push_back(*plan.source);
    lease.cow_source_slot = tree_.state(*plan.source).slot;
    if (plan.source->tail) {
      const Tail* tail = tree_.node(plan.source->node).find_tail(*plan.source->tail);
      lease.source_page = *tail->page;
      if (!taken.empty()) lease.tail_copy = {*tail->page, taken.front()};
    }
  }
  leases_.emplace(id, std::move(lease));
  return id;
}

std::optional<LeaseId> HybridTree::lease(Tokens prompt, std::string_view salt,
                                         const LeaseTerms& terms) {
  validate(prompt, terms);
  const Found found = find(prompt, salt, terms.cursor);
  Plan plan{.match = found.match};
  if (found.source) {
    plan.cached_tokens = found.match.usable_tokens;
    plan.standing = found.usable;
    plan.source = found.source;
  }
  // Before room is made, which may drop the node.
  const LeftPrompt left = left_prompt(found);
  auto id = admit(prompt, salt, terms, plan);
  // A source checkpoint and scattered pages take room of their own. Where they could never stand
  // beside the request, waiting would be for ever: it starts from nothing instead.
  if (!id && !fits_alone(terms, plan)) {
    plan = Plan{.match = found.match};
    plan.match.causes.checkpoint_evicted += plan.match.usable_tokens;
    plan.match.usable_tokens = 0;
    plan.match.checkpoint_kind.reset();
    plan.match.branch_tokens.reset();
    PageMatch& pages = plan.match.in_pages;
    pages.causes.checkpoint_evicted += pages.usable_tokens;
    pages.usable_tokens = 0;
    pages.checkpoint_kind.reset();
    id = admit(prompt, salt, terms, plan);
  }
  if (id) {
    Lease& lease = live(*id);
    lease.turns = note_use(found, plan);
    lease.is_sampled = trials_ && trials_->samples(salt, prompt);
    lease.match.interior_tokens = place_interior(left, plan.match);
    if (!told_time_) now_ms_ += 1000;
    ++leased_requests_;
    prompt_tokens_ += plan.match.prompt_tokens;
    usable_tokens_ += plan.match.usable_tokens;
    lost_ += plan.match.causes;
  }
  return id;
}

std::int64_t HybridTree::note_use(const Found& found, const Plan& plan) {
  EvictionPolicy& policy = tree_.policy();
  if (!policy.learns()) return 0;
  std::int64_t turns = 0;
  const auto use = [&](const StateKey& key) {
    policy.used(key);
    turns = std::max(turns, policy.turns(key));
  };
  const auto key_of = [](const StateRef& ref) { return StateKey{ref.node, ref.tail}; };
  if (plan.source) use(key_of(*plan.source));
  if (!found.lost) return turns;
  const StateKey lost = policy.waiting_for(key_of(*found.lost));
  if (plan.source && lost == key_of(*plan.source)) return turns;
  use(lost);
  policy.superseded(lost);
  return turns;
}

std::optional<LeaseId> HybridTree::lease_receive(Tokens prompt, std::string_view salt,
                                                 const LeaseTerms& terms) {
  validate(prompt, terms);
  const Found found = find(prompt, salt, terms.cursor);
  Plan plan{.match = found.match};
  if (found.kv) {
    plan.cached_tokens = found.kv->depth;
    plan.standing = found.kv;
  }
  auto id = admit(prompt, salt, terms, plan);
  if (!id && !fits_alone(terms, plan)) {
    id = admit(prompt, salt, terms, Plan{.match = found.match});
  }
  return id;
}

std::optional<LeaseId> HybridTree::lease_to_send(Tokens prompt, std::string_view salt) {
  if (prompt.empty()) throw InvalidArgument("tokens must not be empty");
  const Found found = find(prompt, salt, std::nullopt);
  if (!found.source) return std::nullopt;
  const Plan plan{.match = found.match,
                  .cached_tokens = found.match.usable_tokens,
                  .standing = found.usable,
                  .source = found.source};
  const LeaseTerms nothing{found.usable.depth, 0, std::nullopt};
  return admit(prompt, salt, nothing, plan);
}

bool HybridTree::extend(LeaseId id, std::int64_t capacity) {
  Lease& lease = working(id, "extend");
  require_at_least("capacity_tokens", capacity, 0);
  const std::int64_t more = pages_for(capacity) - static_cast<std::int64_t>(lease.pages.size());
  if (more <= 0) return true;
  check_possible(capacity, static_cast<std::int64_t>(lease.working_slots.size()));
  ++clock_;
  if (!make_room(more, 0, id)) return false;
  const std::vector<PageId> taken = allocator_.take_pages(more);
  lease.pages.insert(lease.pages.end(), taken.begin(), taken.end());
  lease.own.insert(lease.own.end(), taken.size(), true);
  return true;
}

void HybridTree::append(LeaseId id, Tokens tokens) {
  Lease& lease = live(id);
  if (lease.state == LeaseState::kClosed) working(id, "append");
  lease.kept.insert(lease.kept.end(), tokens.begin(), tokens.end());
}

std::optional<SlotId> HybridTree::take_checkpoint_slot(LeaseId id) {
  Lease& lease = working(id, "take_checkpoint_slot");
  ++clock_;
  if (!make_room(0, 1, id)) return std::nullopt;
  const SlotId slot = allocator_.take_slot();
  lease.destination_slots.push_back(slot);
  return slot;
}

void HybridTree::release(LeaseId id) {
  Lease& lease = live(id);
  if (lease.state == LeaseState::kGranted) working(id, "release");
  ++clock_;
  try_policies(lease);
  for (auto i = static_cast<std::size_t>(lease.shared_pages); i < lease.pages.size(); ++i) {
    if (lease.own[i]) allocator_.give_back(lease.pages[i], Owner::kWorking);
  }
  for (const SlotId slot : lease.working_slots) allocator_.give_back(slot, Owner::kWorking);
  end_lease(id);
}

void HybridTree::end_lease(LeaseId id) {
  ++room_version_;
  Lease& lease = live(id);
  for (const SlotId slot : lease.destination_slots) allocator_.give_back(slot, Owner::kWorking);
  for (const StateRef& ref : lease.pinned_states) tree_.unpin_state(ref);
  tree_.unpin(lease.standing.node, id);
  tree_.close_root_if_bare(lease.root);
  leases_.erase(id);
}

void HybridTree::grant(LeaseId id) {
  Lease& lease = working(id, "grant");
  ++clock_;
  for (std::size_t i = 0; i < lease.pages.size(); ++i) {
    if (lease.own[i]) allocator_.hand_over(lease.pages[i], Owner::kWorking, Owner::kGranted);
  }
  for (const SlotId slot : lease.working_slots) {
    allocator_.hand_over(slot, Owner::kWorking, Owner::kGranted);
  }
  lease.state = LeaseState::kGranted;
}

void HybridTree::settle(LeaseId id) {
  Lease& lease = live(id);
  if (lease.state != LeaseState::kGranted) {
    throw InvalidArgument("settle: lease " + std::to_string(raw(id)) + " is not granted");
  }
  ++clock_;
  for (std::size_t i = 0; i < lease.pages.size(); ++i) {
    if (lease.own[i]) allocator_.hand_over(lease.pages[i], Owner::kGranted, Owner::kWorking);
  }
  for (const SlotId slot : lease.working_slots) {
    allocator_.hand_over(slot, Owner::kGranted, Owner::kWorking);
  }
  lease.state = LeaseState::kWorking;
}

QuarantineId HybridTree::quarantine(LeaseId id) {
  Lease& lease = live(id);
  if (lease.state != LeaseState::kGranted) {
    throw InvalidArgument("quarantine: lease " + std::to_string(raw(id)) + " is not granted");
  }
  ++clock_;
  Quarantine held;
  for (std::size_t i = 0; i < lease.pages.size(); ++i) {
    if (lease.own[i]) held.pages.push_back(lease.pages[i]);
  }
  held.slots = lease.working_slots;
  for (const PageId page : held.pages) {
    allocator_.hand_over(page, Owner::kGranted, Owner::kQuarantined);
  }
  for (const SlotId slot : held.slots) {
    allocator_.hand_over(slot, Owner::kGranted, Owner::kQuarantined);
  }
  const auto quarantine = static_cast<QuarantineId>(next_quarantine_++);
  quarantines_.emplace(quarantine, std::move(held));
  end_lease(id);
  return quarantine;
}

void HybridTree::free_quarantined(QuarantineId id) {
  const auto found = quarantines_.find(id);
  if (found == quarantines_.end()) {
    throw InvalidArgument("quarantine " + std::to_string(raw(id)) + " was freed or never began");
  }
  ++clock_;
  ++room_version_;
  for (const PageId page : found->second.pages) {
    allocator_.give_back(page, Owner::kQuarantined);
  }
  for (const SlotId slot : found->second.slots) {
    allocator_.give_back(slot, Owner::kQuarantined);
  }
  quarantines_.erase(found);
}

}  // namespace tasuki::cache
