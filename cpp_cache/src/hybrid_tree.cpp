// Ask, sessions, room and maintenance. Leases are in leasing.cpp, publishing in publishing.cpp.
#include "cpp_cache/hybrid_tree.h"

#include <algorithm>
#include <memory>

#include "cpp_cache/errors.h"
#include "cpp_cache/policies.h"

namespace tasuki::cache {

namespace {

const TreeConfig& validated(const TreeConfig& config) {
  config.validate();
  return config;
}

}  // namespace

HybridTree::HybridTree(const TreeConfig& config) : HybridTree(config, make_policy(config.policy)) {}

HybridTree::HybridTree(const TreeConfig& config, std::unique_ptr<EvictionPolicy> policy)
    : config_(validated(config)),
      allocator_(config),
      tree_(std::move(policy), config),
      depths_(config.pages_per_slab * kPageTokens, config.attention_cost) {
  if (config.policy != PolicyKind::kAuto) return;
  trials_ = std::make_unique<PolicyTrials>(config, *tree_.policy().model());
}

PolicyKind HybridTree::policy() const { return trials_ ? trials_->best() : config_.policy; }

void HybridTree::try_policies(const Lease& lease) {
  if (!lease.is_sampled || lease.published.empty()) return;
  Served served{
      *tree_.node(lease.root).salt, {}, lease.match.prompt_tokens, lease.published, now_ms_};
  served.tokens = tree_.tokens_to({lease.standing.node, lease.first_kept});
  served.tokens.insert(served.tokens.end(), lease.kept.begin(), lease.kept.end());
  trials_->serve(served);
  tree_.policy().follow(trials_->best());
}

void HybridTree::advance_to(std::int64_t now_ms) {
  told_time_ = true;
  now_ms_ = std::max(now_ms_, now_ms);
}

std::optional<Position> HybridTree::start_of(Tokens prompt, std::string_view salt,
                                             std::optional<CursorId> id) const {
  if (!id) return std::nullopt;
  const auto found = cursors_.find(*id);
  if (found == cursors_.end()) {
    throw InvalidArgument("cursor " + std::to_string(raw(*id)) + " is not open");
  }
  const Cursor& cursor = found->second;
  if (cursor.salt != salt) {
    throw InvalidArgument("cursor " + std::to_string(raw(*id)) + " was opened under another salt");
  }
  if (!cursor.place || !tree_.alive(cursor.place->node, cursor.serial)) return std::nullopt;
  const Position place = tree_.cover(cursor.place->node, cursor.place->depth);
  if (place.depth == 0 || place.depth > static_cast<std::int64_t>(prompt.size())) {
    return std::nullopt;
  }
  const Node& node = tree_.node(place.node);
  const auto page = static_cast<std::size_t>(kPageTokens);
  const Tokens known =
      Tokens(node.tokens)
          .subspan(static_cast<std::size_t>(place.depth - kPageTokens - node.start()), page);
  const Tokens given = prompt.subspan(static_cast<std::size_t>(place.depth - kPageTokens), page);
  if (!std::ranges::equal(known, given)) return std::nullopt;
  return place;
}

Found HybridTree::find(Tokens prompt, std::string_view salt, std::optional<CursorId> cursor) const {
  if (prompt.empty()) throw InvalidArgument("tokens must not be empty");
  Found found = Matcher(tree_, leases_).find(prompt, salt, start_of(prompt, salt, cursor));
  if (found.lost) found.match.lost = evictions_.lost({found.lost->node, found.lost->tail});
  return found;
}

Match HybridTree::match(Tokens prompt, std::string_view salt,
                        std::optional<CursorId> cursor) const {
  return find(prompt, salt, cursor).match;
}

std::int64_t HybridTree::capacity_tokens(std::int64_t working_slots) const {
  if (working_slots < 0) {
    throw InvalidArgument("working_slots must be 0 or more, not " + std::to_string(working_slots));
  }
  const std::int64_t slabs = std::max<std::int64_t>(0, config_.slabs - working_slots);
  return slabs * config_.pages_per_slab * kPageTokens;
}

TreeStats HybridTree::stats() const {
  TreeStats stats;
  stats.pages = allocator_.page_counts();
  stats.pages.pinned = tree_.pinned_pages();
  stats.slots = allocator_.slot_counts();
  stats.slots.pinned = tree_.pinned_states();
  stats.slabs_free = allocator_.slabs_free();
  stats.slabs_of_pages = allocator_.slabs_of_pages();
  stats.slabs_of_slots = allocator_.slabs_of_slots();
  stats.slabs_total = config_.slabs;
  stats.nodes = tree_.resident_nodes();
  stats.ghost_nodes = tree_.ghosts().size();
  stats.checkpoints = tree_.states();
  stats.leases = static_cast<std::int64_t>(leases_.size());
  stats.cursors = static_cast<std::int64_t>(cursors_.size());
  stats.evicted_pages = evicted_pages_;
  stats.evicted_checkpoints = evicted_checkpoints_;
  stats.leased_requests = leased_requests_;
  stats.prompt_tokens = prompt_tokens_;
  stats.usable_tokens = usable_tokens_;
  stats.lost = lost_;
  if (trials_) stats.policies = trials_->scores();
  return stats;
}

CursorId HybridTree::open_cursor(std::string_view salt) {
  const auto id = static_cast<CursorId>(next_cursor_);
  cursors_.emplace(id, Cursor{std::string(salt), std::nullopt});
  ++next_cursor_;
  return id;
}

CursorId HybridTree::fork_cursor(CursorId cursor) {
  const auto id = static_cast<CursorId>(next_cursor_);
  cursors_.emplace(id, Cursor(cursor_of(cursor)));
  ++next_cursor_;
  return id;
}

void HybridTree::close_cursor(CursorId cursor) {
  const Cursor closed = cursor_of(cursor);
  cursors_.erase(cursor);
  if (!closed.end || !tree_.alive(closed.end->node, closed.end_serial)) return;
  // A fork that has not gone on yet still waits at the same end.
  const bool shared = std::ranges::any_of(cursors_, [&](const auto& entry) {
    const Cursor& other = entry.second;
    return other.end && other.end_serial == closed.end_serial &&
           other.end->tail == closed.end->tail;
  });
  if (!shared) tree_.expect_no_use(*closed.end);
}

HybridTree::Cursor& HybridTree::cursor_of(CursorId id) {
  const auto found = cursors_.find(id);
  if (found == cursors_.end()) {
    throw InvalidArgument("cursor " + std::to_string(raw(id)) + " is not open");
  }
  return found->second;
}

std::int64_t HybridTree::emptiable_slabs() const {
  std::vector<bool> blocked(static_cast<std::size_t>(config_.slabs));
  const auto block = [&](PageId page) {
    blocked[static_cast<std::size_t>(allocator_.slab_of(page))] = true;
  };
  tree_.nodes().for_each([&](const Node& node) {
    if (node.is_protected()) std::ranges::for_each(node.pages, block);
    for (const Tail& tail : node.tails) {
      if (tail.resident() && tail.state->pins > 0) block(*tail.page);
    }
  });
  return std::ranges::count_if(allocator_.slabs_without_foreign_pages(), [&](std::int64_t slab) {
    return !blocked[static_cast<std::size_t>(slab)];
  });
}

bool HybridTree::reclaimable(std::int64_t pages, std::int64_t slots) const {
  const std::int64_t loose_slots = tree_.states() - tree_.pinned_states();
  const std::int64_t loose_pages = tree_.pages() - tree_.pinned_pages();
  const std::int64_t room =
      allocator_.page_counts().free + loose_pages + loose_slots * config_.pages_per_slab;
  if (pages > room - slots * config_.pages_per_slab) return false;
  const std::int64_t whole = allocator_.slabs_free() + loose_slots;
  // Counting slabs that would empty walks the tree: only where free slabs and states do not
  // suffice.
  return slots <= whole || slots <= whole + emptiable_slabs();
}

bool HybridTree::make_room(std::int64_t pages, std::int64_t slots, LeaseId lease) {
  if (allocator_.fits(pages, slots)) return true;
  if (!reclaimable(pages, slots)) return false;
  while (!allocator_.fits(pages, slots)) {
    if (slots > allocator_.slabs_free() && empty_a_slab()) continue;
    const auto item = tree_.victim();
    if (!item) throw IntegrityError("invariant 3: room was counted that no eviction can make");
    evict(*item, lease);
  }
  return true;
}

Eviction HybridTree::described(const EvictionItem& item, std::optional<LeaseId> lease) const {
  const Node& node = tree_.node(item.node);
  Eviction told{.sequence = 0,
                .kind = item.kind,
                .checkpoint_kind = {},
                .boundary = node.depth,
                .pages = static_cast<std::int64_t>(node.pages.size()),
                .score = tree_.score(item),
                .lease = lease};
  if (item.kind == EvictionKind::kLeafPages) return told;
  const Checkpoint& state = tree_.state({item.node, item.tail});
  told.checkpoint_kind = state.kind;
  told.boundary = state.boundary;
  told.pages = config_.pages_per_slab + (item.tail ? 1 : 0);
  return told;
}

void HybridTree::evict(const EvictionItem& item, std::optional<LeaseId> lease) {
  journal_.evicting(item);
  evictions_.add(item, described(item, lease));
  census_.evicting(item);
  const Freed freed = tree_.evict(item, clock_);
  ++room_version_;
  earnings_.evicted();
  for (const PageId page : freed.pages) allocator_.give_back(page, Owner::kTree);
  for (const SlotId slot : freed.slots) allocator_.give_back(slot, Owner::kTree);
  evicted_pages_ += static_cast<std::int64_t>(freed.pages.size());
  evicted_checkpoints_ += static_cast<std::int64_t>(freed.slots.size());
}

std::optional<TreeView> HybridTree::view(std::optional<NodeName> under, std::int64_t limit) {
  if (limit < 1) {
    throw InvalidArgument("limit must be at least 1 node, not " + std::to_string(limit));
  }
  census_.take();
  return view_tree(tree_, census_, under, limit, clock_);
}

std::optional<NodeName> HybridTree::node_at(Tokens tokens, std::string_view salt) const {
  const Found found = find(tokens, salt, std::nullopt);
  std::optional<NodeId> node = tree_.root(salt);
  if (found.kv) node = tree_.cover(found.kv->node, found.kv->depth).node;
  if (!node) return std::nullopt;
  return NodeName{*node, tree_.node(*node).serial};
}

std::int64_t HybridTree::flush() {
  ++clock_;
  const std::int64_t before = tree_.resident_nodes();
  const std::int64_t standing = tree_.pages() + tree_.states();
  const bool clears = standing > 0 && tree_.pinned_pages() + tree_.pinned_states() == 0;
  if (clears) journal_.begin_clearing();
  while (const auto item = tree_.victim()) evict(*item, std::nullopt);
  if (clears) journal_.end_clearing();
  tree_.forget_ghosts();
  if (trials_) trials_->flush();
  return before - tree_.resident_nodes();
}

}  // namespace tasuki::cache
