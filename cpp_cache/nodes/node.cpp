#include "nodes/node.h"

#include <algorithm>

namespace tasuki::cache {

std::int64_t Node::resident_tails() const {
  return std::ranges::count_if(tails, [](const Tail& tail) { return tail.resident(); });
}

const Tail* Node::find_tail(TailId id) const {
  const auto found = std::ranges::find(tails, id, &Tail::id);
  return found == tails.end() ? nullptr : &*found;
}

Tail& Node::tail(TailId id) { return *std::ranges::find(tails, id, &Tail::id); }

const Checkpoint& Node::state(const std::optional<TailId>& tail) const {
  return tail ? *find_tail(*tail)->state : *checkpoint;
}

Checkpoint& Node::state(const std::optional<TailId>& tail) {
  return tail ? *this->tail(*tail).state : *checkpoint;
}

}  // namespace tasuki::cache
