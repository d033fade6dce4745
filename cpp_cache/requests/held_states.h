// List of existing states, the most valuable first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/ids.h"
#include "requests/cursor_table.h"
#include "tree/radix_tree.h"

namespace tasuki::cache {

// A state without a running fork. Names it while it exists.
struct HeldState {
  StateKey key;
  std::uint64_t serial;         // serial of its node
  std::int64_t boundary;        // tokens before the state
  bool awaited;                 // an open session's latest turn ended here
  std::optional<double> value;  // worth to the policy per page; nullopt: ordered by age only
};

// A state's tokens.
struct StatePath {
  std::string salt;
  std::vector<Token> tokens;
};

// Return the `limit` most valuable states: first the ends of open sessions, then by the policy's
// value, then by last use. Left out are states without expected use. Left out too are states with a
// single path on to another state, unless a session waits there. Changes nothing. Cost: all nodes
// and states.
std::vector<HeldState> most_valuable(const RadixTree& tree, const CursorTable& cursors,
                                     std::int64_t limit);

// Return the state's tokens; nullopt: it no longer exists.
std::optional<StatePath> path_to(const RadixTree& tree, const HeldState& state);

}  // namespace tasuki::cache
