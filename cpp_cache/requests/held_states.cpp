#include "requests/held_states.h"

#include <algorithm>
#include <tuple>

namespace tasuki::cache {

namespace {

struct Ranked {
  HeldState state;
  Tick last_use;

  // Break ties by name, so equal trees give equal lists.
  bool operator<(const Ranked& other) const {
    const auto rank = [](const Ranked& each) {
      return std::tuple(each.state.awaited, each.state.value.value_or(0), each.last_use);
    };
    if (rank(*this) != rank(other)) return rank(other) < rank(*this);
    return state.key < other.state.key;
  }
};

bool has_state(const Node& node) { return node.checkpoint || node.tails.resident() > 0; }

class Lister {
 public:
  Lister(const RadixTree& tree, const CursorTable& cursors)
      : tree_(tree), cursors_(cursors), above_state_(tree.nodes().size()) {
    tree_.nodes().for_each([this](const Node& node) {
      if (has_state(node)) mark_above(node);
    });
  }

  void add(const Node& node) {
    if (node.checkpoint) {
      add(node, *node.checkpoint, std::nullopt, is_on_the_way(node));
    }
    for (const auto& [id, tail] : node.tails) {
      if (tail.resident()) add(node, *tail.state, id, is_on_the_way(node, tail));
    }
  }

  std::vector<HeldState> first(std::int64_t limit) {
    const auto most = std::min(ranked_.size(), static_cast<std::size_t>(limit));
    const auto end = ranked_.begin() + static_cast<std::ptrdiff_t>(most);
    std::partial_sort(ranked_.begin(), end, ranked_.end());
    std::vector<HeldState> states;
    for (auto each = ranked_.begin(); each != end; ++each) states.push_back(each->state);
    return states;
  }

 private:
  void mark_above(const Node& node) {
    const Node* below = &node;
    while (!below->is_root()) {
      below = &tree_.node(*below->parent);
      if (above_state_[place(*below)]) return;
      above_state_[place(*below)] = true;
    }
  }

  static std::size_t place(const Node& node) { return static_cast<std::size_t>(raw(node.id)); }

  // At its end or below.
  bool leads_to_state(NodeId id) const {
    const Node& node = tree_.node(id);
    return has_state(node) || above_state_[place(node)];
  }

  // Return true if exactly one path, or a request's own, goes on from the node's end to a state:
  // the next request resumes there.
  bool is_on_the_way(const Node& node) const {
    std::int64_t ways = node.tails.resident();
    for (const ChildEntry child : node.children) {
      if (ways > 1) break;
      if (leads_to_state(child.node)) ++ways;
    }
    return ways == 1 || (ways == 0 && node.is_protected());
  }

  // The same for a tail, inside the following page.
  bool is_on_the_way(const Node& node, const Tail& tail) const {
    const auto own = static_cast<std::int64_t>(tail.tokens.size());
    if (tree_.common_with_child(node, tail.tokens) < own) return false;
    return std::ranges::any_of(node.children, [&](const ChildEntry child) {
      const Tokens page = tree_.node(child.node).first_page();
      return std::ranges::equal(tail.tokens, page.first(tail.tokens.size())) &&
             leads_to_state(child.node);
    });
  }

  void add(const Node& node, const Checkpoint& state, std::optional<TailId> tail, bool on_the_way) {
    if (state.pins > 0) return;
    const StateKey key{node.id, tail};
    const bool awaited = cursors_.waits_at(key, node.serial);
    if (on_the_way && !awaited) return;
    const auto kind = tail ? EvictionKind::kTail : EvictionKind::kCheckpoint;
    const auto value = tree_.score({kind, state.last_use, node.id, tail, state.probationary});
    if (value && *value <= 0) return;
    ranked_.push_back({{key, node.serial, state.boundary, awaited, value}, state.last_use});
  }

  const RadixTree& tree_;
  const CursorTable& cursors_;
  std::vector<bool> above_state_;  // by node: a state exists below it
  std::vector<Ranked> ranked_;
};

}  // namespace

std::vector<HeldState> most_valuable(const RadixTree& tree, const CursorTable& cursors,
                                     std::int64_t limit) {
  Lister lister(tree, cursors);
  tree.nodes().for_each([&](const Node& node) { lister.add(node); });
  return lister.first(limit);
}

std::optional<StatePath> path_to(const RadixTree& tree, const HeldState& state) {
  if (!tree.alive(state.key.node, state.serial)) return std::nullopt;
  const Node& node = tree.node(state.key.node);
  const Tail* tail = state.key.tail ? node.tails.find(*state.key.tail) : nullptr;
  const bool stands = state.key.tail ? tail != nullptr && tail->resident()
                                     : node.resident && node.checkpoint.has_value();
  if (!stands) return std::nullopt;
  StatePath path{{}, tree.tokens_to({node.id, node.depth})};
  if (tail != nullptr) {
    path.tokens.insert(path.tokens.end(), tail->tokens.begin(), tail->tokens.end());
  }
  const Node* root = &node;
  while (!root->is_root()) root = &tree.node(*root->parent);
  path.salt = *root->salt;
  return path;
}

}  // namespace tasuki::cache
