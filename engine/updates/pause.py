"""A pause of an engine's requests, between two forwards.

Owns the mode in force. Thread rule: the engine loop's. Invariants: while a pause is in force, no
waiting request begins. It is at rest once no forward is in flight and every request waits, or, in
the mode KEEP, stands between two tokens. So no load, hand-over or pull is in progress for any. A
pause at rest stays so until its end. A prefill node's requests always end, because other nodes wait
for them.
"""

from tasuki.engine import messages as m
from tasuki.engine.messages import PauseMode
from tasuki.engine.request import Active, Waiting
from tasuki.engine.roles.base import Handover
from tasuki.engine.scheduling.scheduler import Hold, Scheduler


class Pause:
    def __init__(
        self, scheduler: Scheduler, handover: Handover, modes: frozenset[PauseMode]
    ) -> None:
        """modes: the modes of this role; WAIT takes the place of others."""
        self._modes = modes
        self._scheduler = scheduler
        self._handover = handover
        self.mode: PauseMode | None = None
        """The mode in force; None: requests run."""

    def begin(self, mode: PauseMode) -> None:
        mode = mode if mode in self._modes else PauseMode.WAIT
        self.mode = mode
        self._scheduler.hold = Hold.NEW if mode is PauseMode.WAIT else Hold.ALL
        if mode is PauseMode.ABORT:
            for request in list(self._handover.requests):
                self._handover.handle(m.Abort(request.id))

    def end(self) -> None:
        self.mode = None
        self._scheduler.hold = Hold.NOTHING

    def comes_to_rest(self) -> bool:
        """Return True if the pause is at rest. Take memory back from running requests, in the mode
        RETRACT. REQUIRES: a pause is in force, and no forward is in flight."""
        if self.mode is PauseMode.RETRACT:
            self._scheduler.retract_all()
        rests = (Waiting, Active) if self.mode is PauseMode.KEEP else (Waiting,)
        return all(isinstance(request.state, rests) for request in self._handover.requests)

    @property
    def requests(self) -> int:
        """Return the number of requests not over."""
        return len(self._handover.requests)
