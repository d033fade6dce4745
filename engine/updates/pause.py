"""A pause of an engine's requests, between two forwards.

Owns the mode in force. Thread rule: the engine loop's. Invariants: while a pause is in force, no
waiting request begins. It is at rest once no forward is in flight, no load is in progress, and, in
every mode but KEEP, no request holds memory for an answer. Nothing but its end changes that.
"""

from tasuki.engine import messages as m
from tasuki.engine.messages import PauseMode
from tasuki.engine.roles.base import Handover
from tasuki.engine.scheduling.scheduler import Hold, Scheduler


class Pause:
    def __init__(self, scheduler: Scheduler, handover: Handover) -> None:
        self._scheduler = scheduler
        self._handover = handover
        self.mode: PauseMode | None = None
        """The mode in force; None: requests run."""

    def begin(self, mode: PauseMode) -> None:
        self.mode = mode
        self._scheduler.hold = Hold.NEW if mode is PauseMode.WAIT else Hold.ALL
        if mode is PauseMode.ABORT:
            for request in list(self._handover.requests):
                self._handover.handle(m.Abort(request.id))

    def end(self) -> None:
        self.mode = None
        self._scheduler.hold = Hold.NOTHING

    def comes_to_rest(self) -> bool:
        """Return True if the pause is at rest. Take memory back from requests that run, in the mode
        RETRACT. REQUIRES: a pause is in force, and no forward is in flight."""
        if self.mode is PauseMode.RETRACT:
            self._scheduler.retract_all()
        holds = self._scheduler.running if self.mode is not PauseMode.KEEP else ()
        return not holds and not self._scheduler.loading

    @property
    def requests(self) -> int:
        """Return the number of requests not over."""
        return len(self._handover.requests)
