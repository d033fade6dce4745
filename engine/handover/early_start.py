"""The first decode step after a hand-over, begun while the prompt's layer chunks still arrive: the
decision to begin, and the measured step time. Thread rule: the engine loop's."""

from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass

from tasuki.engine.messages import TransferId
from tasuki.engine.request import Request
from tasuki.engine.roles.early_steps import EarlyStep, EarlySteps
from tasuki.model.forward import SequenceSlice
from tasuki.model.ops.sampling.reference import Sampled
from tasuki.pycache._cpp_cache import Allocation
from tasuki.transfer.receiving.incoming_transfer import LayerBarrier

_REMEMBERED = 8
"""Number of step durations remembered. The shortest one counts, because a delayed step predicts
nothing."""
_DOUBT = 0.98
"""Factor on the estimated step time after each transfer judged too short for an early step. The
estimate must fall: without early steps no new duration is measured."""

Barriers = Callable[[TransferId], LayerBarrier | None]
"""Return the layer barrier of a transfer with layer chunks arriving at this node; None if no layer
chunk is expected. The barrier lets a computation wait for each layer's data."""


def no_barriers(transfer_id: TransferId) -> None:
    """Return None: a `Barriers` function for engines without early decode steps."""


@dataclass
class EarlyCounters:
    """Counters of early decode steps, begun before their prompt has arrived completely.

    begun: steps begun. unneeded: steps not begun, because the rest of the transfer was shorter than
    a step. busy: steps not begun, because another transfer's step ran. joined: steps with a token
    used as the answer's second. dropped: steps of lost transfers, and failed steps.
    """

    begun: int = 0
    unneeded: int = 0
    busy: int = 0
    joined: int = 0
    dropped: int = 0


class EarlyStart:
    """The decision to decode a request before its prompt has arrived completely, and the measured
    step time.

    Owns the thread of the early steps and the measured durations; each step belongs to its transfer
    (decode_transfers.py). Thread rule: the engine loop. Invariant: the token of a step is used only
    by take(), called for completed transfers.
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
        self,
        transfer_id: TransferId,
        request: Request,
        allocation: Allocation,
        tail_seconds: float | None,
    ) -> EarlyStep | None:
        """Begin the decode step after the first token, if the rest of the transfer takes longer
        than a step. Return None if no step was begun.

        tail_seconds: the sender's estimate of the transfer's remaining seconds; None: unknown, so
        no step begins. Before the first step ever, the step time is unknown and counts as 0.
        REQUIRES: the transfer had no step; the request's output is one token, not its last; the
        allocation covers the token's position.
        """
        if tail_seconds is None or tail_seconds <= self._step_seconds:
            self._counters.unneeded += 1
            self._belief *= _DOUBT
            return None
        barrier = self._barriers(transfer_id)
        if barrier is None:
            return None
        start = len(request.prompt)
        step = EarlyStep(
            barrier,
            SequenceSlice(
                token_ids=request.output[:1].tolist(),
                start=start,
                pages=allocation.pages.tolist(),
                read_slot=allocation.working_slots[0],
                write_slot=allocation.working_slots[1],
                stepped=True,
                rope_delta=0 if request.pictures is None else request.pictures.layout.delta,
                ids_before=self._steps.ids_before(request, start),
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
        """Return the answer's second token, sampled by the early step; None if the step sampled
        none. REQUIRES: the step has ended, and its transfer is complete."""
        if step.sampled is None:
            self._counters.dropped += 1
            return None
        assert step.seconds is not None
        self._seconds.append(step.seconds)
        self._belief = 1.0
        self._counters.joined += 1
        return step.sampled

    def drop(self) -> None:
        """Count an ended early step of a lost transfer as dropped."""
        self._counters.dropped += 1
