// Positions of sessions in the tree.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "core/ids.h"
#include "nodes/node.h"
#include "tree/radix_tree.h"

namespace tasuki::cache {

// Owns the open cursors; reads the tree. A cursor vouches for its prompts: they extend the tokens
// inserted under it. After its node is gone it has no position. Every method throws InvalidArgument
// on a cursor not open, except move() and end_turn(): a session may be closed while its request
// runs.
//
// Invariant: waiting_ counts the open cursors by the end of their latest turns. Every method costs
// O(log n) of the open cursors.
class CursorTable {
 public:
  explicit CursorTable(const RadixTree& tree) : tree_(tree) {}

  CursorId open(std::string_view salt);
  CursorId fork(CursorId id);
  // Close the cursor. Returns the state at its latest turn's end, if it exists and no other session
  // waits there.
  std::optional<StateKey> close(CursorId id);

  // Return the position from which the prompt must be compared, if any. The page before it is
  // compared too. Throws InvalidArgument if the cursor was opened under another salt.
  std::optional<Position> start_of(CursorId id, Tokens prompt, std::string_view salt) const;

  void move(CursorId id, Position place);
  void end_turn(CursorId id, const StateKey& end);
  // Return true if an open session's latest turn ended in the state. serial: the node's.
  bool waits_at(const StateKey& state, std::uint64_t serial) const {
    return waiting_.contains({state, serial});
  }
  std::int64_t size() const { return static_cast<std::int64_t>(cursors_.size()); }

 private:
  struct TurnEnd {
    StateKey state;
    std::uint64_t serial;  // its node's serial

    auto operator<=>(const TurnEnd&) const = default;
  };
  struct Cursor {
    std::string salt;
    std::optional<Position> place{};
    std::uint64_t serial = 0;      // serial of place's node
    std::optional<TurnEnd> end{};  // end of its latest turn
  };

  const Cursor& at(CursorId id) const;
  CursorId add(Cursor cursor);
  // A cursor waits there no more.
  void leave(const TurnEnd& end);

  const RadixTree& tree_;
  std::map<CursorId, Cursor> cursors_;
  std::map<TurnEnd, std::int64_t> waiting_;
  std::int64_t next_ = 1;
};

}  // namespace tasuki::cache
