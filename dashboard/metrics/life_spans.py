"""How long a request was in which state. Pure functions of the marks that its life left."""

from collections import Counter
from collections.abc import Sequence

from tasuki.engine.messages import LifeMark

QUEUED = ("Waiting", "AwaitingPrefill", "AwaitingGrant", "Retracted")
PREFILLED = ("Prefilling", "Receiving")


def seconds_by_state(life: Sequence[LifeMark]) -> Counter[str]:
    """A request begins in Waiting; its last mark has no length."""
    spans: Counter[str] = Counter()
    state, since = "Waiting", 0.0
    for mark in life:
        spans[state] += mark.at - since  # type: ignore[assignment]
        state, since = mark.state, mark.at
    return spans


def queued_seconds(life: Sequence[LifeMark]) -> float:
    """Until somebody computed: here, or on the node that the prompt was given to."""
    spans = seconds_by_state(life)
    return sum(spans[state] for state in QUEUED)


def prefilled_seconds(life: Sequence[LifeMark]) -> float:
    """While the prompt was computed here or received."""
    spans = seconds_by_state(life)
    return sum(spans[state] for state in PREFILLED)
