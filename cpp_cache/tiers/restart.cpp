// Contents of a tier beyond its owner's end: labels of writes, and the return of written states,
// here or from another node.
#include <algorithm>
#include <ranges>
#include <string>
#include <utility>

#include "core/common_tokens.h"
#include "core/errors.h"
#include "tiers/tiers.h"

namespace tasuki::cache {

WriteLabel Tiers::label_of(TransferId id) const {
  const auto found = transfers_.find(id);
  const WriteInFlight* const write =
      found == transfers_.end() ? nullptr : std::get_if<WriteInFlight>(&found->second.what);
  if (write == nullptr || write->is_abandoned) {
    throw InvalidArgument("transfer " + std::to_string(raw(id)) + " is no write under way");
  }
  const Node& host = tree_.node(write->state.node);
  const NodeId above =
      write->runs.empty() ? host.id : tree_.node(*tree_.node(write->runs.front()).parent).id;
  const Node* root = &host;
  while (!root->is_root()) root = &tree_.node(*root->parent);
  WriteLabel label{*root->salt, tree_.node(above).depth};
  if (!tree_.node(above).is_root()) {
    label.above = at(write->to).copies().find(above)->run.pages.back();
  }
  label.tokens = tree_.tokens_to({host.id, host.depth});
  label.tokens.erase(label.tokens.begin(), label.tokens.begin() + label.start);
  if (write->state.tail) {
    const std::vector<Token>& tail = host.tails.find(*write->state.tail)->tokens;
    label.tokens.insert(label.tokens.end(), tail.begin(), tail.end());
  }
  label.kind = at(write->to).copies().state(write->state)->held.kind;
  return label;
}

// Split the run at the first token of the state not in the tree.
Position Tiers::stands_to(NodeId root, Tokens tokens) {
  const auto whole = static_cast<std::int64_t>(tokens.size()) / kPageTokens * kPageTokens;
  Position place{root, 0};
  while (place.depth < whole) {
    const Tokens rest = tokens.subspan(static_cast<std::size_t>(place.depth));
    const auto child =
        tree_.find_child(tree_.node(place.node), rest.first(static_cast<std::size_t>(kPageTokens)));
    if (!child) return place;
    const Node& node = tree_.node(*child);
    const std::int64_t same =
        common_tokens(node.tokens, rest.first(static_cast<std::size_t>(whole - place.depth))) /
        kPageTokens * kPageTokens;
    place = {*child, place.depth + same};
    if (place.depth == node.depth) continue;
    place.node = tree_.split(*child, place.depth);
    journal_.split(place.node);
    split(place.node);
    return place;
  }
  return place;
}

bool Tiers::restore(TierId to, const KeptState& kept, Tick now) {
  LowerTier& tier = at(to);
  const auto boundary = static_cast<std::int64_t>(kept.tokens.size());
  const std::int64_t whole = boundary / kPageTokens * kPageTokens;
  const NodeId root = tree_.open_root(kept.salt);
  const Position stands = stands_to(root, kept.tokens);
  const Tokens tail = kept.tokens.subspan(static_cast<std::size_t>(whole));
  const auto refuse = [&] {
    tree_.close_root_if_bare(root);
    return false;
  };
  // A new cache has no run or state in another tier only.
  const Node& node = tree_.node(stands.node);
  if (!node.is_root() && tier.copies().run_state(node.id) != CopyState::kPresent) return refuse();
  if (stands.depth == whole && (tail.empty() ? node.checkpoint || node.checkpoint_below.tiers != 0
                                             : node.tails.find(tail) != nullptr)) {
    return refuse();
  }
  TierIds ids{{kept.pages.begin() + stands.depth / kPageTokens, kept.pages.end()}, kept.slot};
  if (!tier.claim(ids)) return refuse();

  StateKey key{stands.node, std::nullopt};
  StateCopy copy{CopyState::kReserved, {kept.slot, kept.kind, boundary, now}, std::nullopt};
  if (!tail.empty()) {
    copy.page = ids.pages.back();
    ids.pages.pop_back();
  }
  if (stands.depth < whole) {
    key.node =
        tree_.add_child_below(stands.node,
                              kept.tokens.subspan(static_cast<std::size_t>(stands.depth),
                                                  static_cast<std::size_t>(whole - stands.depth)),
                              now);
    tier.reserve_these(key.node, std::move(ids.pages));
    tier.settle_run(key.node, now);
    journal_.stored(key.node, stands.depth);
  }
  if (!tail.empty()) key.tail = tree_.add_tail_below(key.node, tail);
  tree_.policy().born(key, {kept.kind, TurnHint::kUnknown, boundary, 0});
  tier.reserve_these(key, copy);
  tier.settle_state(key, now);
  journal_.state_stored(key);
  return true;
}

std::optional<AdoptedState> Tiers::adopt(TierId to, std::string_view salt, Tokens tokens,
                                         CheckpointKind kind, Tick now) {
  LowerTier& tier = at(to);
  const auto boundary = static_cast<std::int64_t>(tokens.size());
  const std::int64_t whole = boundary / kPageTokens * kPageTokens;
  const Tokens tail = tokens.subspan(static_cast<std::size_t>(whole));
  if (!tier.could_hold((boundary + kPageTokens - 1) / kPageTokens, 1)) return std::nullopt;
  const NodeId root = tree_.open_root(salt);
  const std::uint64_t serial = tree_.node(root).serial;
  const Position stands = stands_to(root, tokens);
  const auto refuse = [&] {
    // The split may have made too many ghosts, and ended the root's last one.
    tree_.trim_ghosts();
    if (tree_.alive(root, serial)) tree_.close_root_if_bare(root);
    return std::nullopt;
  };
  const Node* node = &tree_.node(stands.node);
  if (stands.depth == whole) {
    const Tail* const known = tail.empty() ? nullptr : node->tails.find(tail);
    if (tail.empty() ? node->checkpoint || node->checkpoint_below.tiers != 0
                     : known != nullptr && !known->is_ghost()) {
      return refuse();
    }
  }
  std::vector<std::pair<NodeId, std::uint64_t>> lacking;
  std::int64_t pages = (whole - stands.depth) / kPageTokens + (tail.empty() ? 0 : 1);
  for (; !node->is_root(); node = &tree_.node(*node->parent)) {
    const CopyState held = tier.copies().run_state(node->id);
    // The ids are usable after the write, or never.
    if (held == CopyState::kReserved) return refuse();
    if (held != CopyState::kNone) break;
    lacking.emplace_back(node->id, node->serial);
    pages += static_cast<std::int64_t>(node->tokens.size()) / kPageTokens;
  }
  std::ranges::reverse(lacking);
  const std::optional<NodeId> above = node->is_root() ? std::nullopt : std::optional(node->id);
  if (above) tier.hold_run(*above);
  const bool fits = make_room(to, pages, 1, now);
  if (above) tier.let_run(*above);
  // The drop may have pushed ghosts of the path out.
  const auto is_alive = [&](const auto& run) { return tree_.alive(run.first, run.second); };
  if (!fits || !tree_.alive(root, serial) || !std::ranges::all_of(lacking, is_alive)) {
    return refuse();
  }

  StateKey key{stands.node, std::nullopt};
  if (stands.depth < whole) {
    key.node = tree_.add_child_below(stands.node,
                                     tokens.subspan(static_cast<std::size_t>(stands.depth),
                                                    static_cast<std::size_t>(whole - stands.depth)),
                                     now);
    lacking.emplace_back(key.node, tree_.node(key.node).serial);
  }
  if (!tail.empty()) {
    const Tail* const gone = tree_.node(key.node).tails.find(tail);
    key.tail = gone != nullptr ? gone->id : tree_.add_tail_below(key.node, tail);
  }
  tree_.policy().born(key, {kind, TurnHint::kUnknown, boundary, 0});
  // Take the slot first: pages may live in gaps, a slot needs a whole slab.
  tier.reserve_state(key, {CopyState::kNone, {SlotId{}, kind, boundary, now}, std::nullopt});
  AdoptedState adopted;
  for (const NodeId run : lacking | std::views::keys) {
    const bool is_new = tree_.node(run).is_ghost();
    tier.reserve_run(run);
    tier.settle_run(run, now);
    if (is_new) journal_.stored(run, tree_.node(run).start());
  }
  tier.settle_state(key, now);
  journal_.state_stored(key);
  const StateCopy& copy = *tier.copies().state(key);
  adopted.slot = copy.held.slot;
  std::vector<NodeId> path;
  for (const Node* each = &tree_.node(key.node); !each->is_root();
       each = &tree_.node(*each->parent)) {
    path.push_back(each->id);
  }
  for (const NodeId each : std::views::reverse(path)) {
    const std::vector<PageId>& run = tier.copies().find(each)->run.pages;
    adopted.pages.insert(adopted.pages.end(), run.begin(), run.end());
  }
  if (copy.page) adopted.pages.push_back(*copy.page);
  adopted.first_new = static_cast<std::int64_t>(adopted.pages.size()) - pages;
  return adopted;
}

}  // namespace tasuki::cache
