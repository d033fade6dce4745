// Copies of nodes in one tier below the arena.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/ids.h"
#include "nodes/tail_list.h"

namespace tasuki::cache {

// none -> kReserved -> [every acknowledgement was good] -> kPresent -> none
//                                  kPresent -> kLeaving -> [the tier below has it] -> none
// A reserved copy becomes none if its source goes or an acknowledgement is bad. Its ids belong to
// the transfer until the last acknowledgement.
enum class CopyState : std::uint8_t {
  kNone,
  kReserved,  // it is being written: of no use yet
  kPresent,
  kLeaving,  // dropped once the tier below has it; usable until then
};

struct RunCopy {
  CopyState state = CopyState::kNone;
  std::vector<PageId> pages{};
  Tick last_use = 0;
  std::int32_t readers = 0;  // transfers that read it as their deepest run or keep it
};

struct StateCopy {
  CopyState state;
  Checkpoint held;             // `pins`: number of loads in progress
  std::optional<PageId> page;  // set for a tail
};

struct NodeCopies {
  RunCopy run{};
  std::optional<StateCopy> checkpoint{};
  std::map<TailId, StateCopy> tails{};
  std::int32_t children = 0;  // nodes right below with a copy of their run

  bool holds_states() const { return checkpoint.has_value() || !tails.empty(); }
  bool empty() const { return run.state == CopyState::kNone && !holds_states() && children == 0; }
};

// Owns the copies; a node without any costs one pointer, and only while there is a tier.
class CopyTable {
 public:
  const NodeCopies* find(NodeId id) const {
    const auto place = static_cast<std::size_t>(raw(id));
    return place < nodes_.size() ? nodes_[place].get() : nullptr;
  }
  NodeCopies* find(NodeId id) {
    const auto place = static_cast<std::size_t>(raw(id));
    return place < nodes_.size() ? nodes_[place].get() : nullptr;
  }
  // Return the node's copies; blank for a new node.
  NodeCopies& at(NodeId id);
  void drop_if_empty(NodeId id);

  const StateCopy* state(const StateKey& key) const;
  StateCopy* state(const StateKey& key);
  CopyState run_state(NodeId id) const {
    const NodeCopies* const copies = find(id);
    return copies == nullptr ? CopyState::kNone : copies->run.state;
  }
  StateCopy& add(const StateKey& key, const StateCopy& copy);
  void erase(const StateKey& key);

  template <typename Each>
  void for_each(Each each) const {
    for (std::size_t place = 0; place < nodes_.size(); ++place) {
      if (nodes_[place]) each(static_cast<NodeId>(place), *nodes_[place]);
    }
  }

 private:
  std::vector<std::unique_ptr<NodeCopies>> nodes_;
};

}  // namespace tasuki::cache
