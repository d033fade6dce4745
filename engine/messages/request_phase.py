"""Where a request is in its life, since when, and how every consumer counts it."""

from dataclasses import dataclass
from enum import Enum, StrEnum


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

    WAITING = "Waiting", Stage.QUEUED
    AWAITING_PREFILL = "AwaitingPrefill", Stage.QUEUED
    PULLING = "Pulling", Stage.QUEUED
    RECEIVING = "Receiving", Stage.PREFILL
    AWAITING_GRANT = "AwaitingGrant", Stage.QUEUED
    PREFILLING = "Prefilling", Stage.PREFILL
    DECODING = "Decoding", Stage.DECODE
    HANDING_OVER = "HandingOver", Stage.HANDOVER
    RETRACTED = "Retracted", Stage.QUEUED
    FINISHED = "Finished", Stage.OVER
    ABORTED = "Aborted", Stage.OVER

    stage: Stage

    def __new__(cls, name: str, stage: Stage) -> "RequestPhase":
        phase = str.__new__(cls, name)
        phase._value_ = name
        phase.stage = stage
        return phase

    @property
    def is_queued(self) -> bool:
        """Nobody computes the request's next token yet."""
        return self.stage is Stage.QUEUED

    @property
    def is_running(self) -> bool:
        return self.stage in (Stage.PREFILL, Stage.DECODE, Stage.HANDOVER)


KEPT_MARKS = 64
"""A request that is retracted or handed over again and again keeps its first marks and its end."""


@dataclass(frozen=True)
class LifeMark:
    """The request came into `state`, `at` seconds after it arrived."""

    state: RequestPhase
    at: float


def marked(life: list[LifeMark], mark: LifeMark) -> None:
    """Append to `life`, in place of the last mark where it is full."""
    if len(life) >= KEPT_MARKS:
        life.pop()
    life.append(mark)
