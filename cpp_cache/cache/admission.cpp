#include "cache/admission.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/errors.h"

namespace tasuki::cache {

namespace {

std::int64_t pages_for(std::int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

// Far beyond any arena: keeps sums of sizes from overflowing.
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 48;

// Answers rarely grow longer. Beyond it, memory for later tokens is not set aside.
constexpr std::int64_t kMostForeseen = 4096;

void require_at_least(std::string_view name, std::int64_t value, std::int64_t least) {
  if (value >= least && value <= kMaxTokens) return;
  throw InvalidArgument(std::string(name) + " must be at least " + std::to_string(least) +
                        " and at most 2^48, not " + std::to_string(value));
}

}  // namespace

std::int64_t Admission::most_tokens(std::int64_t working_slots) const {
  const std::int64_t slabs = std::max<std::int64_t>(0, config_.slabs - working_slots);
  return slabs * config_.pages_per_slab * kPageTokens;
}

void Admission::validate(Tokens prompt, const AllocationTerms& terms) const {
  if (prompt.empty()) throw InvalidArgument("tokens must not be empty");
  require_at_least("capacity_tokens", terms.capacity_tokens,
                   static_cast<std::int64_t>(prompt.size()));
  require_at_least("working_slots", terms.working_slots, 0);
  if (terms.load_wait && terms.working_slots < 1) {
    throw InvalidArgument("load_wait needs a working slot: a state is loaded into the first");
  }
  if (terms.load_wait && !(*terms.load_wait >= 0)) {
    throw InvalidArgument("load_wait must be 0 or more");
  }
  check_possible(terms.capacity_tokens, terms.working_slots);
}

void Admission::check_possible(std::int64_t capacity, std::int64_t working_slots) const {
  const std::int64_t most = most_tokens(working_slots);
  if (pages_for(capacity) * kPageTokens <= most && working_slots <= config_.slabs) return;
  throw ImpossibleRequest(
      std::to_string(capacity) + " tokens beside " + std::to_string(working_slots) +
      " working slots never fit this arena of " + std::to_string(config_.slabs) +
      " slabs: at most " + std::to_string(most) + " tokens do");
}

std::int64_t Admission::own_pages(const AllocationTerms& terms, const AdmissionPlan& plan) const {
  const std::int64_t shared = plan.standing ? plan.standing->depth / kPageTokens : 0;
  return pages_for(terms.capacity_tokens) - shared;
}

bool Admission::fits_alone(const AllocationTerms& terms, const AdmissionPlan& plan) const {
  std::vector<bool> blocked(static_cast<std::size_t>(config_.slabs));
  const auto block = [&](std::int64_t slab) { blocked[static_cast<std::size_t>(slab)] = true; };
  std::int64_t held = 0;
  if (plan.standing) {
    // The pin protects this node to its end and all nodes above it.
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
      const Tail* tail = tree_.node(plan.source->node).tails.find(*plan.source->tail);
      block(allocator_.slab_of(*tail->page));
      ++held;
    }
  }
  const std::int64_t room = (config_.slabs - terms.working_slots) * config_.pages_per_slab - held;
  return own_pages(terms, plan) <= room &&
         terms.working_slots <= config_.slabs - std::ranges::count(blocked, true);
}

std::optional<AllocationId> Admission::admit(Tokens prompt, std::string_view salt,
                                             const AllocationTerms& terms,
                                             const AdmissionPlan& plan, Tick now) {
  const NodeId root = tree_.open_root(salt);
  const Position standing = plan.standing.value_or(Position{root, 0});
  const std::int64_t own = own_pages(terms, plan);
  const AllocationId id = allocations_.next_id();
  tree_.pins().pin(standing.node, id, now);
  if (plan.source) tree_.pins().pin_state(*plan.source);
  if (!reclaimer_.make_room(own, terms.working_slots, id, now)) {
    if (plan.source) tree_.pins().unpin_state(*plan.source);
    tree_.pins().unpin(standing.node, id);
    tree_.close_root_if_bare(root);
    return std::nullopt;
  }

  const auto prompt_end = static_cast<std::int64_t>(prompt.size());
  Allocation& allocation = allocations_.add();
  allocation.root = root;
  allocation.match = plan.match;
  allocation.cached_tokens = plan.cached_tokens;
  allocation.standing = standing;
  allocation.first_kept = standing.depth;
  allocation.cursor = terms.cursor;
  allocation.latest_state = plan.source;
  // The answer is appended within the capacity: growing by doubling would copy the prompt again.
  allocation.kept.reserve(static_cast<std::size_t>(
      std::min(terms.capacity_tokens, prompt_end + kMostForeseen) - standing.depth));
  allocation.kept.assign(prompt.begin() + standing.depth, prompt.end());
  allocation.pages = tree_.pages_to(standing, own);
  allocation.shared_pages = static_cast<std::int64_t>(allocation.pages.size());
  allocation.own.assign(allocation.pages.size(), false);
  // Slots first: pages may live in gaps, a slot needs a whole slab.
  for (std::int64_t i = 0; i < terms.working_slots; ++i) {
    allocation.working_slots.push_back(allocator_.take_slot());
  }
  take_pages(allocation, own);
  if (plan.source) fork_from(*plan.source, allocation, now);
  return id;
}

void Admission::fork_from(const StateKey& source, Allocation& allocation, Tick now) {
  tree_.touch(source, now);
  if (tiers_ != nullptr) tiers_->used(source, now);
  allocation.source = source;
  allocation.pinned_states.push_back(source);
  allocation.cow_source_slot = tree_.state(source).slot;
  if (!source.tail) return;
  const PageId page = *tree_.node(source.node).tails.find(*source.tail)->page;
  allocation.source_page = page;
  const auto first_own = static_cast<std::size_t>(allocation.shared_pages);
  if (first_own == allocation.pages.size()) return;
  allocation.tail_copy = {page, allocation.pages[first_own]};
}

std::int64_t Admission::pages_lacking(const Allocation& allocation, std::int64_t capacity) const {
  require_at_least("capacity_tokens", capacity, 0);
  const auto held = static_cast<std::int64_t>(allocation.pages.size());
  const std::int64_t lacking = pages_for(capacity) - held;
  if (lacking > 0) {
    check_possible(capacity, static_cast<std::int64_t>(allocation.working_slots.size()));
  }
  return lacking;
}

bool Admission::extend(Allocation& allocation, std::int64_t pages, Tick now) {
  if (!reclaimer_.make_room(pages, 0, allocation.id, now)) return false;
  take_pages(allocation, pages);
  return true;
}

void Admission::take_pages(Allocation& allocation, std::int64_t count) {
  allocator_.take_pages(count, allocation.pages);
  allocation.own.resize(allocation.pages.size(), true);
}

}  // namespace tasuki::cache
