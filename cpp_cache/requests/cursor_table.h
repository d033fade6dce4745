// Places in the tree where sessions stand.
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

// Owns the open cursors; reads the tree. A cursor vouches that prompts given with it extend what
// was inserted under it. Its node may be gone: then it stands nowhere. Every method throws
// InvalidArgument on a cursor that is not open, but for move() and end_turn(), which ignore it: a
// session may be closed while its request runs.
//
// Invariant: waiting_ counts the open cursors by where their latest turns ended. Every method costs
// O(log n) of the open cursors.
class CursorTable {
 public:
  explicit CursorTable(const RadixTree& tree) : tree_(tree) {}

  CursorId open(std::string_view salt);
  CursorId fork(CursorId id);
  // Returns the state at which the session waited, if it stands and no other session waits there.
  std::optional<StateKey> close(CursorId id);

  // From where the prompt need not be compared, if anywhere: the page before is. Throws
  // InvalidArgument where the cursor was opened under another salt.
  std::optional<Position> start_of(CursorId id, Tokens prompt, std::string_view salt) const;

  void move(CursorId id, Position place);
  void end_turn(CursorId id, const StateKey& end);
  // Whether an open session's latest turn ended in the state. serial: of its node.
  bool waits_at(const StateKey& state, std::uint64_t serial) const {
    return waiting_.contains({state, serial});
  }
  std::int64_t size() const { return static_cast<std::int64_t>(cursors_.size()); }

 private:
  struct TurnEnd {
    StateKey state;
    std::uint64_t serial;  // of its node

    auto operator<=>(const TurnEnd&) const = default;
  };
  struct Cursor {
    std::string salt;
    std::optional<Position> place{};
    std::uint64_t serial = 0;      // of place's node
    std::optional<TurnEnd> end{};  // of its latest turn
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
