// Bounded memory of evicted prefixes.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <optional>
#include <set>

#include "core/ids.h"

namespace tasuki::cache {

struct Ghost {
  Tick since;
  NodeId node;
  std::optional<TailId> tail;  // nullopt: the node itself

  auto operator<=>(const Ghost&) const = default;
};

// Owns the order in which ghosts are forgotten; the ghosts are in the tree. Limited in number and
// in tokens, because a node's run may be long.
class GhostList {
 public:
  static constexpr std::int64_t kTokensPerGhost = 1024;

  explicit GhostList(std::int64_t limit) : limit_(limit) {}
  void add(const Ghost& ghost, std::int64_t tokens);
  void remove(const Ghost& ghost, std::int64_t tokens);
  // The ghost to forget next, while there are too many.
  std::optional<Ghost> excess() const;
  std::optional<Ghost> oldest() const;
  bool contains(const Ghost& ghost) const { return ghosts_.contains(ghost); }
  std::int64_t size() const { return static_cast<std::int64_t>(ghosts_.size()); }
  std::int64_t tokens() const { return tokens_; }

 private:
  std::int64_t limit_;
  std::int64_t tokens_ = 0;
  // Own pool, because entries come and go all the time; its memory is kept until the end.
  std::pmr::unsynchronized_pool_resource pool_;
  std::pmr::set<Ghost> ghosts_{&pool_};
};

}  // namespace tasuki::cache
