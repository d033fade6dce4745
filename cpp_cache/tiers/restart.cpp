// What a tier holds beyond its owner's end: how a write is labelled, and how what was written
// stands again.
#include <algorithm>
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

// Splits the run in which the state's tokens leave what the tree has.
Position Tiers::stands_to(NodeId root, const KeptState& kept) {
  const auto whole = static_cast<std::int64_t>(kept.tokens.size()) / kPageTokens * kPageTokens;
  Position place{root, 0};
  while (place.depth < whole) {
    const Tokens rest = kept.tokens.subspan(static_cast<std::size_t>(place.depth));
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
  const Position stands = stands_to(root, kept);
  const Tokens tail = kept.tokens.subspan(static_cast<std::size_t>(whole));
  const auto refuse = [&] {
    tree_.close_root_if_bare(root);
    return false;
  };
  // A run or state that another tier has, and this one not, is none of a cache that begins.
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

}  // namespace tasuki::cache
