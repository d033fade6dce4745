"""The first decode step behind a hand-over, while its windows still land: whether it is begun, and
what is learnt from it. Thread rule: the engine loop's.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass

from tasuki.engine.messages import RoomId
from tasuki.engine.request import Request
from tasuki.engine.roles.early_steps import EarlyStep, EarlySteps
from tasuki.model.forward import SequenceSlice
from tasuki.model.ops.sampling.reference import Sampled
from tasuki.pycache._cpp_cache import Allocation
from tasuki.transfer.receiving.incoming_room import LayerBarrier

_REMEMBERED = 8
"""Steps whose shortest is believed: a step that others held up says nothing of the next."""
_DOUBT = 0.98
"""Of what is believed, for each transfer that was not worth a step: without steps nothing is
learnt."""

Barriers = Callable[[RoomId], LayerBarrier | None]
"""The barrier of a room whose windows land here; None where none are awaited."""


def no_barriers(room: RoomId) -> None:
    """As Barriers, where no step begins early."""


@dataclass
class EarlyCounters:
    """unneeded: the rest of the transfer was shorter than a step; busy: another room's step ran;
    joined: its token was the answer's second; dropped: the room was lost or the step broke."""

    begun: int = 0
    unneeded: int = 0
    busy: int = 0
    joined: int = 0
    dropped: int = 0


class EarlyStart:
    """Whether a request decodes before its prompt has landed, and what is learnt from that step.

    Owns the thread of the steps and the measure of how long one takes; a step belongs to its room
    (decode_rooms.py). Thread rule: the engine loop. Invariant: the token of a step is used only by
    take(), which is for rooms that are done.
    """

    def __init__(self, steps: EarlySteps, barriers: Barriers) -> None:
        self._steps = steps
        self._barriers = barriers
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self._belief = 1.0
        self._counters = EarlyCounters()

    @property
    def counters(self) -> dict[str, int]:
        return asdict(self._counters)

    def prepare(self) -> None:
        self._steps.prepare()

    def close(self) -> None:
        self._steps.close()

    def consider(
        self, room: RoomId, request: Request, allocation: Allocation, tail_seconds: float | None
    ) -> EarlyStep | None:
        """Begin the step behind the first token, if the transfer's rest takes longer than it; None
        where none was begun.

        Before the first step of all its length is unknown and taken for nothing. REQUIRES: the room
        had no step; the request's output is one token, not its last; the allocation covers that
        token's position."""
        if tail_seconds is None or tail_seconds <= self._step_seconds:
            self._counters.unneeded += 1
            self._belief *= _DOUBT
            return None
        barrier = self._barriers(room)
        if barrier is None:
            return None
        step = EarlyStep(
            barrier,
            SequenceSlice(
                token_ids=request.output[:1].tolist(),
                start=len(request.prompt),
                pages=allocation.pages.tolist(),
                read_slot=allocation.working_slots[0],
                write_slot=allocation.working_slots[1],
                stepped=True,
            ),
            request.sampling,
            self._steps.adjuster(request),
        )
        if not self._steps.begin(step):
            self._counters.busy += 1
            return None
        self._counters.begun += 1
        return step

    @property
    def _step_seconds(self) -> float:
        return self._belief * min(self._seconds, default=0.0)

    def take(self, step: EarlyStep) -> Sampled | None:
        """The answer's second token, if the step has drawn it. REQUIRES: the step has ended, and
        its room is done."""
        if step.sampled is None:
            self._counters.dropped += 1
            return None
        assert step.seconds is not None
        self._seconds.append(step.seconds)
        self._belief = 1.0
        self._counters.joined += 1
        return step.sampled

    def drop(self) -> None:
        """A step has ended whose room was lost."""
        self._counters.dropped += 1
