"""How long a request was in which phase, and its tokens took. Pure functions."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from tasuki.engine.messages import LifeMark, RequestPhase, Stage, Usage

Name = TypeVar("Name", bound=str)


def seconds_by_phase(first: Name, marks: Iterable[tuple[Name, float]]) -> Counter[Name]:
    """first: the phase until the first mark. marks: a phase and the seconds at which it began. The
    last mark has no length. Names need not be phases of this version: another node may have
    more."""
    spans: Counter[Name] = Counter()
    phase, since = first, 0.0
    for entered, at in marks:
        spans[phase] += at - since  # type: ignore[assignment]
        phase, since = entered, at
    return spans


def _spans(life: Sequence[LifeMark]) -> Counter[RequestPhase]:
    return seconds_by_phase(RequestPhase.WAITING, ((mark.state, mark.at) for mark in life))


def queued_seconds(life: Sequence[LifeMark]) -> float:
    """Until somebody computed: here, or on the node that the prompt was given to."""
    return sum(seconds for phase, seconds in _spans(life).items() if phase.is_queued)


def prefilled_seconds(life: Sequence[LifeMark]) -> float:
    """While the prompt was computed here or received."""
    return sum(seconds for phase, seconds in _spans(life).items() if phase.stage is Stage.PREFILL)


def seconds_per_token(usage: Usage) -> float | None:
    """The mean over the tokens after the first; None where there are none."""
    later = usage.completion_tokens - 1
    return (usage.seconds - usage.time_to_first_token) / later if later > 0 else None


def missed_targets(usage: Usage) -> list[str]:
    """Names of the targets that the answer did not keep; empty where it had none."""
    targets = usage.targets
    if targets is None:
        return []
    taken = (
        ("first_token", targets.first_token, usage.time_to_first_token),
        ("per_token", targets.per_token, seconds_per_token(usage)),
        ("answer", targets.answer, usage.seconds),
    )
    return [
        name
        for name, wanted, took in taken
        if wanted is not None and took is not None and took > wanted
    ]
