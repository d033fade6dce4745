"""The asks of one front worker that begin something: a state for each.

Pure. An ask that begins something has one message that ends it, or one for each of its parts. The
message that ends it may come before the ask, with it, before it is granted, or later.
Invariants: an entry leaves once its ask and its end have come and nothing is held for it; an ask
that was never granted leaves at its refusal. An end of an ask that has left changes nothing.

| event   | no entry    | ASKED     | BEGUN  | WITHDRAWN | ENDING | OVER   | ENDED_FIRST |
| ------- | ----------- | --------- | ------ | --------- | ------ | ------ | ----------- |
| begin() | ASKED       | error     | error  | error     | error  | error  | leaves      |
| grant() | error       | BEGUN     | error  | ENDING    | error  | error  | error       |
| end()   | ENDED_FIRST | WITHDRAWN | ENDING | -         | -      | leaves | -           |
| over()  | error       | leaves    | OVER   | leaves    | leaves | error  | error       |
"""

from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

BegunT = TypeVar("BegunT")


class AskState(Enum):
    ASKED = "asked"  # its grant or refusal is still to come
    BEGUN = "begun"  # granted: something is held for it
    WITHDRAWN = "withdrawn"  # its end came before its grant
    ENDING = "ending"  # granted and ended: what it holds is being given back
    OVER = "over"  # nothing is held for it, and its end is still to come
    ENDED_FIRST = "ended first"  # its end came before the ask itself


class AskOrderError(ValueError):
    """An event that the state of its ask does not allow, such as a second begin."""

    def __init__(self, event: str, call: int, state: AskState | None) -> None:
        found = "not known" if state is None else f"in state {state.value!r}"
        super().__init__(f"{event} of ask {call}, which is {found}: give each ask its own number")


_AT_GRANT = {AskState.ASKED: AskState.BEGUN, AskState.WITHDRAWN: AskState.ENDING}
_AT_END = {AskState.ASKED: AskState.WITHDRAWN, AskState.BEGUN: AskState.ENDING}
_LEAVES_OVER = frozenset({AskState.ASKED, AskState.WITHDRAWN, AskState.ENDING})


@dataclass
class _Entry(Generic[BegunT]):
    """begun: None in ENDED_FIRST. parts_left: parts whose end is still to come; below zero where
    ends came before the ask. whole: all parts have ended, however many they are."""

    state: AskState
    begun: BegunT | None
    parts_left: int
    whole: bool = False

    @property
    def all_ended(self) -> bool:
        return self.whole or self.parts_left <= 0


class AskTable(Generic[BegunT]):
    """The asks by number, each with an object of the caller's that stands for it. Numbers grow: a
    number at most the highest that began is of an ask that has come."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry[BegunT]] = {}
        self._highest = 0

    def __len__(self) -> int:
        return len(self._entries)

    def state(self, call: int) -> AskState | None:
        """Return the state of an ask; None where it has no entry."""
        entry = self._entries.get(call)
        return None if entry is None else entry.state

    def find(self, call: int) -> BegunT | None:
        """Return the object that begin() was given; None before the ask and after it left."""
        entry = self._entries.get(call)
        return None if entry is None else entry.begun

    def begin(self, call: int, begun: BegunT, parts: int = 1) -> bool:
        """Note that the ask has come. Return False where its end came first: then begin nothing.

        Raises AskOrderError if the ask has an entry already."""
        entry = self._entries.get(call)
        if entry is not None and entry.state is not AskState.ENDED_FIRST:
            raise AskOrderError("a begin", call, entry.state)
        self._highest = max(self._highest, call)
        if entry is not None:
            entry.parts_left += parts
            if entry.all_ended:
                del self._entries[call]
                return False
            parts = entry.parts_left
        self._entries[call] = _Entry(AskState.ASKED, begun, parts)
        return True

    def grant(self, call: int) -> None:
        """Note that the ask is granted. Raises AskOrderError if it does not wait for that."""
        entry = self._entries.get(call)
        if entry is None or entry.state not in _AT_GRANT:
            raise AskOrderError("a grant", call, self.state(call))
        entry.state = _AT_GRANT[entry.state]

    def end(self, call: int) -> AskState | None:
        """Note that all of the ask has ended. Return its state before; None: it had no entry."""
        entry = self._entries.get(call)
        if entry is None:
            if call > self._highest:
                self._entries[call] = _Entry(AskState.ENDED_FIRST, None, 0, whole=True)
            return None
        entry.whole = True
        return self._moved_on(call, entry)

    def end_part(self, call: int) -> AskState | None:
        """Note that one part of the ask has ended; the last one ends the ask. Return its state
        before; None: it had no entry."""
        entry = self._entries.get(call)
        if entry is None:
            if call > self._highest:
                self._entries[call] = _Entry(AskState.ENDED_FIRST, None, -1)
            return None
        entry.parts_left -= 1
        return self._moved_on(call, entry)

    def over(self, call: int) -> AskState:
        """Note that nothing is held for the ask any more. Return its state before.

        Raises AskOrderError if that was noted before."""
        entry = self._entries.get(call)
        if entry is None or entry.state in (AskState.OVER, AskState.ENDED_FIRST):
            raise AskOrderError("an over", call, self.state(call))
        if entry.state in _LEAVES_OVER:
            del self._entries[call]
            return entry.state
        entry.state = AskState.OVER
        return AskState.BEGUN

    def end_all(self) -> None:
        """Note that every ask has ended: its worker is gone."""
        for call, entry in [*self._entries.items()]:
            if entry.state is AskState.ENDED_FIRST:
                del self._entries[call]
            else:
                self.end(call)

    def _moved_on(self, call: int, entry: _Entry[BegunT]) -> AskState:
        """Move the entry to its next state where its end is complete. Return its state before."""
        found = entry.state
        if not entry.all_ended:
            return found
        if found is AskState.OVER:
            del self._entries[call]
        else:
            entry.state = _AT_END.get(found, found)
        return found
