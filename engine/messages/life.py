"""When a request was in which state: plain values, bounded."""

from dataclasses import dataclass

from .request_phase import RequestPhase

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
