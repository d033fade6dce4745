// The states that stand, the most valuable first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/ids.h"
#include "requests/cursor_table.h"
#include "tree/radix_tree.h"

namespace tasuki::cache {

// A state that nobody forks from now. Names it for as long as it stands.
struct HeldState {
  StateKey key;
  std::uint64_t serial;         // of its node
  std::int64_t boundary;        // tokens that it is the state after
  bool awaited;                 // an open session's latest turn ended here
  std::optional<double> value;  // to the policy, a page; nullopt: it only orders by age
};

// The tokens behind which a state stands.
struct StatePath {
  std::string salt;
  std::vector<Token> tokens;
};

// The `limit` most valuable: those that sessions wait at, then by the policy's value, then by last
// use. None that the policy expects no use of, and none from which one path leads on to another,
// but for those that a session waits at. Changes nothing. Cost: the nodes and states that stand.
std::vector<HeldState> most_valuable(const RadixTree& tree, const CursorTable& cursors,
                                     std::int64_t limit);

// nullopt: it stands no more.
std::optional<StatePath> path_to(const RadixTree& tree, const HeldState& state);

}  // namespace tasuki::cache
