"""Where a request is in its life, since when, and how every consumer counts it."""

from enum import Enum, StrEnum

from .types import Message


class Stage(Enum):
    """Of a request's life, as schedulers and gateways count it."""

    QUEUED = "queued"
    PREFILL = "prefill"
    """The prompt is computed here or received."""
    DECODE = "decode"
    HANDOVER = "handover"
    """The prompt is computed; the receiver may still read it."""
    OVER = "over"


class RequestPhase(StrEnum):
    """One for each state class of engine/request.py. The value is the public name: metrics' labels,
    Stats, Explain and the page show it."""

    WAITING = "Waiting"
    AWAITING_PREFILL = "AwaitingPrefill"
    PULLING = "Pulling"
    RECEIVING = "Receiving"
    LOADING = "Loading"
    AWAITING_GRANT = "AwaitingGrant"
    PREFILLING = "Prefilling"
    DECODING = "Decoding"
    HANDING_OVER = "HandingOver"
    RETRACTED = "Retracted"
    FINISHED = "Finished"
    ABORTED = "Aborted"

    @property
    def stage(self) -> Stage:
        return _STAGES[self]

    @property
    def is_queued(self) -> bool:
        """Nobody computes the request's next token yet."""
        return self.stage is Stage.QUEUED

    @property
    def is_running(self) -> bool:
        return self.stage in (Stage.PREFILL, Stage.DECODE, Stage.HANDOVER)


_STAGES = {
    RequestPhase.WAITING: Stage.QUEUED,
    RequestPhase.AWAITING_PREFILL: Stage.QUEUED,
    RequestPhase.PULLING: Stage.QUEUED,
    RequestPhase.RECEIVING: Stage.PREFILL,
    RequestPhase.LOADING: Stage.QUEUED,
    RequestPhase.AWAITING_GRANT: Stage.QUEUED,
    RequestPhase.PREFILLING: Stage.PREFILL,
    RequestPhase.DECODING: Stage.DECODE,
    RequestPhase.HANDING_OVER: Stage.HANDOVER,
    RequestPhase.RETRACTED: Stage.QUEUED,
    RequestPhase.FINISHED: Stage.OVER,
    RequestPhase.ABORTED: Stage.OVER,
}

KEPT_MARKS = 64
"""A request that is retracted or handed over again and again keeps its first marks and its end."""


class LifeMark(Message):
    """The request came into `state`, `at` seconds after it arrived."""

    state: RequestPhase
    at: float


def marked(life: list[LifeMark], mark: LifeMark) -> None:
    """Append to `life`, in place of the last mark where it is full."""
    if len(life) >= KEPT_MARKS:
        life.pop()
    life.append(mark)
