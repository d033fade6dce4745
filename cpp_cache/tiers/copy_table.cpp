#include "tiers/copy_table.h"

namespace tasuki::cache {

NodeCopies& CopyTable::at(NodeId id) {
  const auto place = static_cast<std::size_t>(raw(id));
  if (place >= nodes_.size()) nodes_.resize(place + 1);
  if (!nodes_[place]) nodes_[place] = std::make_unique<NodeCopies>();
  return *nodes_[place];
}

void CopyTable::drop_if_empty(NodeId id) {
  const auto place = static_cast<std::size_t>(raw(id));
  if (place < nodes_.size() && nodes_[place] && nodes_[place]->empty()) nodes_[place].reset();
}

const StateCopy* CopyTable::state(const StateKey& key) const {
  const NodeCopies* const copies = find(key.node);
  if (copies == nullptr) return nullptr;
  if (!key.tail) return copies->checkpoint ? &*copies->checkpoint : nullptr;
  const auto found = copies->tails.find(*key.tail);
  return found == copies->tails.end() ? nullptr : &found->second;
}

StateCopy* CopyTable::state(const StateKey& key) {
  return const_cast<StateCopy*>(static_cast<const CopyTable&>(*this).state(key));
}

StateCopy& CopyTable::add(const StateKey& key, const StateCopy& copy) {
  NodeCopies& copies = at(key.node);
  if (key.tail) return copies.tails.emplace(*key.tail, copy).first->second;
  return copies.checkpoint.emplace(copy);
}

void CopyTable::erase(const StateKey& key) {
  NodeCopies& copies = at(key.node);
  if (key.tail) {
    copies.tails.erase(*key.tail);
  } else {
    copies.checkpoint.reset();
  }
}

}  // namespace tasuki::cache
