#include "view/tree_view.h"

#include <algorithm>
#include <queue>
#include <tuple>
#include <utility>

namespace tasuki::cache {

namespace {

struct Candidate {
  std::int64_t tokens;
  NodeId node;
  std::int32_t above;

  // The heaviest first; ties by id, so equal trees give equal views.
  bool operator<(const Candidate& other) const {
    return std::tuple(tokens, raw(other.node)) < std::tuple(other.tokens, raw(node));
  }
};

class Viewer {
 public:
  Viewer(const RadixTree& tree, const TreeCensus& census, std::int64_t limit, Tick now)
      : tree_(tree), census_(census), limit_(limit), now_(now) {}

  TreeView everything() {
    ViewedNode all;
    std::vector<Candidate> roots;
    for (const auto& [salt, root] : tree_.roots()) {
      all.standing += census_.of(root);
      roots.push_back({census_.of(root).tokens, root, 0});
    }
    all.children = static_cast<std::int64_t>(roots.size());
    all.hidden = all.standing;
    view_.push_back(all);
    offer(std::move(roots));
    return expand();
  }

  TreeView at(NodeId node) {
    add(node, std::nullopt);
    return expand();
  }

 private:
  TreeView expand() {
    while (!waiting_.empty() && static_cast<std::int64_t>(view_.size()) < limit_) {
      const Candidate next = waiting_.top();
      waiting_.pop();
      view_[static_cast<std::size_t>(next.above)].hidden -= census_.of(next.node);
      add(next.node, next.above);
    }
    return std::move(view_);
  }

  void add(NodeId id, std::optional<std::int32_t> above) {
    const Node& node = tree_.node(id);
    const auto place = static_cast<std::int32_t>(view_.size());
    ViewedNode seen;
    seen.name = NodeName{id, node.serial};
    seen.above = above;
    seen.depth = node.depth;
    seen.tokens = static_cast<std::int64_t>(node.pages.size()) * kPageTokens;
    seen.children = node.resident_children();
    if (node.checkpoint) {
      seen.state = node.checkpoint->kind;
      seen.state_pins = node.checkpoint->pins;
    }
    for (const auto& [tail_id, tail] : node.tails) {
      if (!tail.resident()) continue;
      ++seen.tails;
      seen.state_pins += tail.state->pins;
    }
    seen.allocations = static_cast<std::int64_t>(node.allocations.size());
    seen.is_protected = node.is_protected();
    seen.unused = now_ - std::min(now_, node.last_use);
    seen.standing = census_.of(id);
    seen.hidden = seen.standing;
    seen.hidden.tokens -= seen.tokens;
    seen.hidden.nodes -= node.is_root() ? 0 : 1;
    seen.hidden.states -= static_cast<std::int32_t>(seen.tails) + (seen.state ? 1 : 0);
    view_.push_back(seen);
    std::vector<Candidate> children;
    for (const ChildEntry child : node.children) {
      children.push_back({census_.of(child.node).tokens, child.node, place});
    }
    offer(std::move(children));
  }

  // More than the limit can never be viewed.
  void offer(std::vector<Candidate> candidates) {
    const auto most = static_cast<std::size_t>(limit_);
    if (candidates.size() > most) {
      const auto cut = candidates.begin() + static_cast<std::ptrdiff_t>(most);
      std::nth_element(candidates.begin(), cut, candidates.end(),
                       [](const Candidate& left, const Candidate& right) { return right < left; });
      candidates.resize(most, candidates.front());
    }
    for (const Candidate& candidate : candidates) waiting_.push(candidate);
  }

  const RadixTree& tree_;
  const TreeCensus& census_;
  std::int64_t limit_;
  Tick now_;
  TreeView view_;
  std::priority_queue<Candidate> waiting_;
};

}  // namespace

std::optional<TreeView> view_tree(const RadixTree& tree, const TreeCensus& census,
                                  std::optional<NodeName> under, std::int64_t limit, Tick now) {
  Viewer viewer(tree, census, limit, now);
  if (!under) return viewer.everything();
  const auto size = static_cast<std::int64_t>(tree.nodes().size());
  if (raw(under->node) < 0 || raw(under->node) >= size) return std::nullopt;
  if (!tree.alive(under->node, under->serial) || !tree.node(under->node).resident) {
    return std::nullopt;
  }
  return viewer.at(under->node);
}

}  // namespace tasuki::cache
