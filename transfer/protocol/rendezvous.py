"""Rooms that one side knows and the other does not yet: parked until both came, or until a
deadline.

A gateway may call both nodes of a room in parallel, so either may get its call first.
Owns what was parked. Does not know what it is. Thread rule: one thread. The clock is injected.
Invariant: each parked thing leaves exactly once: met, withdrawn or expired.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from tasuki.transfer.errors import DuplicateRoom

Parked = TypeVar("Parked")


class Side(Enum):
    LOCAL = "local"
    REMOTE = "remote"


@dataclass(frozen=True)
class Waiting(Generic[Parked]):
    room: int
    side: Side
    what: Parked
    deadline: float


class Rendezvous(Generic[Parked]):
    def __init__(self, patience: float, clock: Callable[[], float]) -> None:
        """patience: seconds that the first side waits for the second."""
        self._patience = patience
        self._clock = clock
        self._waiting: dict[int, Waiting[Parked]] = {}

    def arrive(self, room: int, side: Side, what: Parked) -> Parked | None:
        """What the other side parked, or None when this side is the first and now waits.

        Raises DuplicateRoom when this side arrived already. An expired partner is not met: see
        expire().
        """
        partner = self._waiting.get(room)
        if partner is None or partner.deadline <= self._clock():
            if partner is not None:
                raise DuplicateRoom(f"room {room}: its first arrival expired and was not collected")
            self._waiting[room] = Waiting(room, side, what, self._clock() + self._patience)
            return None
        if partner.side is side:
            raise DuplicateRoom(f"room {room} has arrived on the {side.value} side before")
        del self._waiting[room]
        return partner.what

    def withdraw(self, room: int, what: Parked) -> None:
        """It was aborted before the other side came; without effect where it does not wait."""
        waiting = self._waiting.get(room)
        if waiting is not None and waiting.what is what:
            del self._waiting[room]

    def expire(self) -> list[Waiting[Parked]]:
        """Take out and return those whose deadline has passed."""
        now = self._clock()
        late = [waiting for waiting in self._waiting.values() if waiting.deadline <= now]
        for waiting in late:
            del self._waiting[waiting.room]
        return late
