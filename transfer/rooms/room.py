"""What every room is, whichever way its bytes go: states, events in order, no endless standstill.

Owns the machine, the queue of events and the watch over it. Knows neither bytes nor engines: a
direction of the bytes is a subclass (receiving_room.py, sending_room.py), and a hand-over's or a
pull's side is a subclass of that. Thread rule: the event loop.
Invariants: nothing is awaited between the room and its next event; between two events the room is
looked at once in `look` seconds, so that one on which nothing moves is noticed.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Set
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Generic, TypeVar

from tasuki.transfer.errors import PeerInvalid
from tasuki.transfer.liveness.progress_watch import ProgressWatch
from tasuki.transfer.protocol.handover_states import IllegalTransition, Machine
from tasuki.transfer.reports import PhaseClock

from .event_queue import EventQueue
from .room_deadlines import StateDeadlines

State = TypeVar("State", bound=Enum)
Step = TypeVar("Step", bound=Enum)
Event = TypeVar("Event")


@dataclass(frozen=True)
class Stalled:
    """Nothing of the room has moved for longer than its state allows."""

    state: Enum
    seconds: float

    @property
    def reason(self) -> str:
        return f"nothing moved for {self.seconds} s: {self.state.value}"


@dataclass(frozen=True)
class Stopped:
    """This node gives the room up."""

    reason: str


class Room(ABC, Generic[State, Step, Event]):
    OVER: ClassVar[Set[Enum]]
    """States in which no event is awaited any more."""

    def __init__(
        self,
        room: int,
        generation: int,
        machine: Machine[State, Step],
        deadlines: StateDeadlines,
        look: float,
        name: str,
        named: Mapping[str, str | int],
    ) -> None:
        """look: seconds between two looks at the deadlines. name, named: what log lines begin with
        and are found by."""
        self.room = room
        self.generation = generation
        self.machine = machine
        self.phases = PhaseClock()
        self.name = name
        self.named = dict(named)
        self._deadlines = deadlines
        self._look = look
        self._watch = ProgressWatch(look)
        self._events: EventQueue[Event] = EventQueue(look)

    @property
    def is_over(self) -> bool:
        return self.machine.state in self.OVER

    @property
    @abstractmethod
    def progress(self) -> int | None:
        """Grows as windows move; None once the room is over."""

    def put(self, event: Event) -> None:
        """Events of a room that is over are dropped with it."""
        self._events.put(event)

    def unread(self) -> list[Event]:
        """Take out what came too late for the room; call after its end."""
        return self._events.take_all()

    async def _live(self) -> None:
        """Take events until the room is over. Raises what breaks outside of one."""
        try:
            while not self.is_over:
                self._take(await self._next())
        finally:
            self._events.close()

    def _take(self, event: Event | Stalled) -> None:
        try:
            self._move(event)
        except (IllegalTransition, PeerInvalid) as error:
            self._contradicted(error)
        except Exception as error:
            self._broke(error)

    async def _next(self) -> Event | Stalled:
        while True:
            if (stalled := self._stood_still()) is not None:
                return stalled
            if (event := await self._events.next()) is not None:
                return event

    def _stood_still(self) -> Stalled | None:
        """What comes before the queue because nothing moves; None while that is allowed. Called at
        each look."""
        state = self.machine.state
        allowed = self._deadlines.of(state)
        still = self._watch.still((state, self._marks()))
        return Stalled(state, allowed) if still > allowed else None

    def _marks(self) -> Hashable:
        """What changes when the room moves within its state."""
        return self.progress

    @abstractmethod
    def _move(self, event: Event | Stalled) -> None:
        """By one event. What it raises ends the room."""

    @abstractmethod
    def _contradicted(self, error: Exception) -> None:
        """End the room: the peer broke the protocol, or this node is defective."""

    @abstractmethod
    def _broke(self, error: Exception) -> None:
        """End the room, by a defect that nobody foresaw."""
