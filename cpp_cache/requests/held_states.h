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
  std::uint64_t serial;         // of its node
  std::int64_t boundary;        // tokens that it is the state after
  bool awaited;                 // an open session's latest turn ended here
  std::optional<double> value;  // to the policy, a page; nullopt: it only orders by age
};

// A state's tokens.
struct StatePath {
  std::string salt;
  std::vector<Token> tokens;
};

// Return the `limit` most valuable states: first those at which sessions wait, then by the policy's
// value, then by last use. Left out: states without expected use, and states from which one path
// leads on to another state, unless a session waits there. Changes nothing. Cost: all nodes and
// states.
std::vector<HeldState> most_valuable(const RadixTree& tree, const CursorTable& cursors,
                                     std::int64_t limit);

// nullopt: it stands no more.
std::optional<StatePath> path_to(const RadixTree& tree, const HeldState& state);

}  // namespace tasuki::cache
