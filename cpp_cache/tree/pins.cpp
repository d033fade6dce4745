#include "tree/pins.h"

#include <algorithm>

namespace tasuki::cache {

void Pins::pin(NodeId id, AllocationId allocation, Tick now) {
  Node& node = nodes_[id];
  candidates_.withdraw(node);
  const bool was_protected = node.is_protected();
  node.allocations.push_back(allocation);
  node.last_use = now;
  if (!was_protected) protect(node);
  candidates_.list(node);
}

void Pins::unpin(NodeId id, AllocationId allocation) {
  Node& node = nodes_[id];
  candidates_.withdraw(node);
  node.allocations.erase(std::ranges::find(node.allocations, allocation));
  if (!node.is_protected()) unprotect(node);
  candidates_.list(node);
}

void Pins::protect(Node& node) {
  // A node above a resident child is no candidate, so only the counts of the ancestors change.
  Node* current = &node;
  while (true) {
    protected_pages_ += static_cast<std::int64_t>(current->pages.size());
    if (current->is_root()) return;
    current = &nodes_[*current->parent];
    const bool was_protected = current->is_protected();
    ++current->protected_children;
    if (was_protected) return;
  }
}

void Pins::unprotect(Node& node) {
  Node* current = &node;
  while (true) {
    protected_pages_ -= static_cast<std::int64_t>(current->pages.size());
    if (current->is_root()) return;
    current = &nodes_[*current->parent];
    --current->protected_children;
    if (current->is_protected()) return;
  }
}

void Pins::pin_state(const StateKey& state) {
  Node& node = nodes_[state.node];
  candidates_.withdraw(node, state.tail);
  if (node.state(state.tail).pins++ == 0) {
    ++pinned_states_;
    if (state.tail) ++pinned_tail_pages_;
  }
  candidates_.list(node, state.tail);
}

void Pins::unpin_state(const StateKey& state) {
  Node& node = nodes_[state.node];
  candidates_.withdraw(node, state.tail);
  if (--node.state(state.tail).pins == 0) {
    --pinned_states_;
    if (state.tail) --pinned_tail_pages_;
  }
  candidates_.list(node, state.tail);
}

}  // namespace tasuki::cache
