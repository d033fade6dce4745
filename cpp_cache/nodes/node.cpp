#include "nodes/node.h"

namespace tasuki::cache {

const Checkpoint& Node::state(const std::optional<TailId>& tail) const {
  return tail ? *tails.find(*tail)->state : *checkpoint;
}

Checkpoint& Node::state(const std::optional<TailId>& tail) {
  return tail ? tails.state(*tail) : *checkpoint;
}

}  // namespace tasuki::cache
