"""One side of a transfer as run by a driver: it takes events in order, and performs the resulting
actions in order.

Owns the side's queue of events. Knows neither threads, tasks nor clocks. A driver is a subclass,
over an event loop (transfer/control/driven_transfer.py) or over a virtual clock (tests/simulation).

Invariants: events are taken in the order of put(), but an action's answer comes before others.
After a failed action the actions behind it are dropped. over() is called once, after the last
event.
"""

import logging
from abc import ABC, abstractmethod
from collections import deque

from tasuki.transfer.errors import TransferError

from .actions import Action
from .events import Begin, Broke, Event, Failed, Look
from .receiving import Receiving
from .sending import Sending

log = logging.getLogger(__name__)


class SteppedSide(ABC):
    def __init__(self, side: Receiving | Sending, name: str) -> None:
        """name: start of the side's log lines."""
        self.name = name
        self._side = side
        self._events: deque[Event] = deque((Begin(),))
        self._stepping = True
        """True while events wait: until begin() is called, or while an event is being handled."""
        self._ended = False

    @property
    def is_over(self) -> bool:
        return self._ended

    @abstractmethod
    def now(self) -> float:
        """Return the seconds of this node's clock."""

    @abstractmethod
    def facts(self) -> Look:
        """Return the transfer's present progress and writer facts, for a check of the deadlines."""

    @abstractmethod
    def perform(self, action: Action) -> Event | None:
        """Perform the action. Return the event answering it; None if the answer comes later, or
        never. Raises TransferError if the action is rejected."""

    @abstractmethod
    def over(self, failure: Exception | None) -> None:
        """Handle the end of the side: it takes no more events. failure: error of the state machine,
        raised again while it handled the first; None without one."""

    @abstractmethod
    def stepped(self) -> None:
        """Reset the timer after events were handled: the time of the next check may have
        changed."""

    def begin(self) -> None:
        """Handle the first event, and the events put before this call. REQUIRES: called once."""
        self._stepping = False
        self._take_all()

    def put(self, event: Event) -> None:
        """Handle the event now, or after the one being handled. Dropped if the side has ended."""
        if self._ended:
            return
        self._events.append(event)
        self._take_all()

    def look(self) -> None:
        """Check the deadlines with the present facts, because the time for it has come."""
        try:
            facts: Event = self.facts()
        except Exception as error:
            facts = self._defect(error)
        self.put(facts)

    def end(self, failure: Exception | None = None) -> None:
        """End the side: it handles no more events. Idempotent. failure: see over()."""
        if not self._ended:
            self._ended = True
            self._events.clear()
            self.over(failure)

    def _take_all(self) -> None:
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events and not self._ended:
                self._take(self._events.popleft())
        finally:
            self._stepping = False
        if not self._ended:
            self.stepped()

    def _take(self, event: Event) -> None:
        try:
            self._perform_all(self._step(event))
        except Exception as error:
            log.exception("%s cannot go on", self.name)
            self.end(error)
        if self._side.is_over and not self._events:
            self.end()

    def _step(self, event: Event) -> list[Action]:
        try:
            return self._side.step(event, self.now())
        except Exception as error:
            return self._side.step(self._defect(error), self.now())

    def _defect(self, error: Exception) -> Broke:
        """Log a defect and return it as the event Broke, because it must still end its transfer."""
        log.error("%s broke", self.name, exc_info=error)
        return Broke(repr(error))

    def _perform_all(self, actions: list[Action]) -> None:
        for action in actions:
            try:
                answer = self.perform(action)
            except TransferError as error:
                answer = Failed(action, str(error), is_defect=False)
            except Exception as error:
                answer = Failed(action, self._defect(error).reason, is_defect=True)
            if answer is not None:
                self._events.appendleft(answer)
            if isinstance(answer, Failed):
                return
