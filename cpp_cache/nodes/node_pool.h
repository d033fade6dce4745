// The nodes of a tree, by id.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "nodes/node.h"

namespace tasuki::cache {

// Owns the nodes in blocks that never move. So a step down the tree reads the node without a
// pointer, and a reference stays valid until the node is dropped. Reuses the ids of dropped nodes;
// keeps its largest memory. Does not know parents or children.
class NodePool {
 public:
  const Node& operator[](NodeId id) const { return (*blocks_[block(id)])[place(id)]; }
  Node& operator[](NodeId id) { return (*blocks_[block(id)])[place(id)]; }
  // Return true if `id` is still the node with this serial.
  bool holds(NodeId id, std::uint64_t serial) const { return (*this)[id].serial == serial; }
  // Ids are below it.
  std::size_t size() const { return size_; }

  // A blank node with its id and a new serial.
  Node& make() {
    auto id = static_cast<NodeId>(size_);
    if (spare_.empty()) {
      if (size_ % kBlock == 0) blocks_.push_back(std::make_unique<Block>());
      ++size_;
    } else {
      id = spare_.back();
      spare_.pop_back();
    }
    Node& node = (*this)[id];
    node.id = id;
    node.serial = next_serial_++;
    return node;
  }
  // REQUIRES: the node is alive.
  void drop(NodeId id) {
    (*this)[id] = Node{};
    spare_.push_back(id);
  }

  template <typename Each>
  void for_each(Each each) const {
    for (std::size_t id = 0; id < size_; ++id) {
      const Node& node = (*this)[static_cast<NodeId>(id)];
      if (node.serial != kNobody) each(node);
    }
  }

 private:
  static constexpr std::size_t kBlock = 256;
  static constexpr std::uint64_t kNobody = 0;
  using Block = std::array<Node, kBlock>;

  static std::size_t block(NodeId id) { return static_cast<std::uint32_t>(raw(id)) / kBlock; }
  static std::size_t place(NodeId id) { return static_cast<std::uint32_t>(raw(id)) % kBlock; }

  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<NodeId> spare_;
  std::size_t size_ = 0;
  std::uint64_t next_serial_ = kNobody + 1;
};

}  // namespace tasuki::cache
