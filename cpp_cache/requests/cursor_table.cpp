#include "requests/cursor_table.h"

#include <algorithm>
#include <utility>

#include "core/errors.h"

namespace tasuki::cache {

const CursorTable::Cursor& CursorTable::at(CursorId id) const {
  const auto found = cursors_.find(id);
  if (found == cursors_.end()) {
    throw InvalidArgument("cursor " + std::to_string(raw(id)) + " is not open");
  }
  return found->second;
}

CursorId CursorTable::add(Cursor cursor) {
  const auto id = static_cast<CursorId>(next_++);
  if (cursor.end) ++waiting_[*cursor.end];
  cursors_.emplace(id, std::move(cursor));
  return id;
}

void CursorTable::leave(const TurnEnd& end) {
  const auto waiting = waiting_.find(end);
  if (--waiting->second == 0) waiting_.erase(waiting);
}

CursorId CursorTable::open(std::string_view salt) { return add({std::string(salt)}); }

CursorId CursorTable::fork(CursorId id) { return add(at(id)); }

std::optional<StateKey> CursorTable::close(CursorId id) {
  const std::optional<TurnEnd> end = at(id).end;
  cursors_.erase(id);
  if (!end) return std::nullopt;
  leave(*end);
  // A fork without a turn of its own still waits at the same end.
  if (waiting_.contains(*end) || !tree_.alive(end->state.node, end->serial)) return std::nullopt;
  return end->state;
}

std::optional<Position> CursorTable::start_of(CursorId id, Tokens prompt,
                                              std::string_view salt) const {
  const Cursor& cursor = at(id);
  if (cursor.salt != salt) {
    throw InvalidArgument("cursor " + std::to_string(raw(id)) + " was opened under another salt");
  }
  if (!cursor.place || !tree_.alive(cursor.place->node, cursor.serial)) return std::nullopt;
  const Position place = tree_.cover(cursor.place->node, cursor.place->depth);
  if (place.depth == 0 || place.depth > static_cast<std::int64_t>(prompt.size())) {
    return std::nullopt;
  }
  const Node& node = tree_.node(place.node);
  const auto page = static_cast<std::size_t>(kPageTokens);
  const Tokens known =
      Tokens(node.tokens)
          .subspan(static_cast<std::size_t>(place.depth - kPageTokens - node.start()), page);
  const Tokens given = prompt.subspan(static_cast<std::size_t>(place.depth - kPageTokens), page);
  if (!std::ranges::equal(known, given)) return std::nullopt;
  return place;
}

void CursorTable::move(CursorId id, Position place) {
  const auto found = cursors_.find(id);
  if (found == cursors_.end()) return;
  found->second.place = place;
  found->second.serial = tree_.node(place.node).serial;
}

void CursorTable::end_turn(CursorId id, const StateKey& end) {
  const auto found = cursors_.find(id);
  if (found == cursors_.end()) return;
  std::optional<TurnEnd>& before = found->second.end;
  if (before) leave(*before);
  before = TurnEnd{end, tree_.node(end.node).serial};
  ++waiting_[*before];
}

}  // namespace tasuki::cache
