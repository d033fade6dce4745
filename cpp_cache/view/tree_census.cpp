#include "view/tree_census.h"

#include <algorithm>
#include <optional>

namespace tasuki::cache {

namespace {

// A dashboard asks about once a second; without a reader a node soon stops counting.
constexpr std::int64_t kChangesUnasked = 1 << 18;

}  // namespace

Standing& Standing::operator+=(const Standing& other) {
  tokens += other.tokens;
  nodes += other.nodes;
  states += other.states;
  return *this;
}

Standing& Standing::operator-=(const Standing& other) {
  tokens -= other.tokens;
  nodes -= other.nodes;
  states -= other.states;
  return *this;
}

Standing TreeCensus::alone(const Node& node) {
  if (!node.resident) return {};
  Standing own;
  own.tokens = static_cast<std::int64_t>(node.pages.size()) * kPageTokens;
  own.nodes = node.is_root() ? 0 : 1;
  own.states = static_cast<std::int32_t>(node.tails.resident()) + (node.checkpoint ? 1 : 0);
  return own;
}

// Nodes are read once, in the order of memory: in a large tree every step from a node to its child
// waits for memory. Parents then add up their children, leaves first, in the compact sums alone.
void TreeCensus::take() {
  changes_ = 0;
  if (taken()) return;
  const std::size_t size = std::max<std::size_t>(tree_.nodes().size(), 1);
  standing_.resize(size);
  std::vector<std::optional<NodeId>> parents(size);
  std::vector<std::int64_t> children(size);
  tree_.nodes().for_each([&](const Node& node) {
    const auto index = static_cast<std::size_t>(raw(node.id));
    standing_[index] = alone(node);
    children[index] = node.resident_children();
    if (node.resident && !node.is_root()) parents[index] = node.parent;
  });
  std::vector<NodeId> whole;
  for (std::size_t index = 0; index < size; ++index) {
    if (children[index] == 0) whole.push_back(static_cast<NodeId>(index));
  }
  for (std::size_t next = 0; next < whole.size(); ++next) {
    const auto index = static_cast<std::size_t>(raw(whole[next]));
    if (!parents[index]) continue;
    const auto parent = static_cast<std::size_t>(raw(*parents[index]));
    standing_[parent] += standing_[index];
    if (--children[parent] == 0) whole.push_back(*parents[index]);
  }
}

Standing& TreeCensus::at(NodeId node) {
  const auto index = static_cast<std::size_t>(raw(node));
  if (index >= standing_.size()) standing_.resize(std::max(tree_.nodes().size(), index + 1));
  return standing_[index];
}

template <typename Change>
void TreeCensus::climb(NodeId id, Change change) {
  if (++changes_ > kChangesUnasked) {
    standing_ = {};
    return;
  }
  for (const Node* node = &tree_.node(id);; node = &tree_.node(*node->parent)) {
    change(at(node->id));
    if (node->is_root()) return;
  }
}

void TreeCensus::add(NodeId node, const Standing& change) {
  climb(node, [&](Standing& standing) { standing += change; });
}

void TreeCensus::subtract(NodeId node, const Standing& change) {
  climb(node, [&](Standing& standing) { standing -= change; });
}

void TreeCensus::add_stored(NodeId id, std::int64_t start) {
  const Node& node = tree_.node(id);
  add(id, {.tokens = node.depth - start, .nodes = start == node.start() ? 1 : 0});
}

void TreeCensus::add_split(NodeId upper) {
  const Node& node = tree_.node(upper);
  if (!node.resident) return;
  const NodeId lower = (*node.children.begin()).node;
  const Standing before = of(lower);
  at(upper) = before;
  at(lower).tokens -= node.depth - node.start();
  add(upper, {.nodes = 1});
}

void TreeCensus::add_state(NodeId node) { add(node, {.states = 1}); }

void TreeCensus::subtract_evicted(const EvictionItem& item) {
  if (item.kind != EvictionKind::kLeafPages) {
    subtract(item.node, {.states = 1});
    return;
  }
  subtract(item.node, alone(tree_.node(item.node)));
}

}  // namespace tasuki::cache
