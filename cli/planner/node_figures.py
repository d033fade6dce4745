"""What one node did between two answers of its /metrics, as a planner counts it. Pure."""

from dataclasses import dataclass

from tasuki.dashboard.fleet.exposition_text import Samples, by_label, difference, one
from tasuki.dashboard.fleet.histogram import Buckets, buckets_of
from tasuki.engine.messages.request_phase import RequestPhase

_STEP = "tasuki_engine_step_seconds"
_ROOM = "tasuki_room_prefill_seconds"
_WAIT = "tasuki_prefill_node_wait_seconds"
_STARTED = "tasuki_node_start_time_seconds"
_GENERATED = "tasuki_generated_tokens_total"
_REQUESTS = "tasuki_requests"
_POOLS = ("tasuki_cache_pages", "tasuki_cache_slots")

PLANNED_BY = frozenset(
    {
        *(f"{name}_{part}" for name in (_STEP, _ROOM) for part in ("sum", "count")),
        f"{_ROOM}_bucket",
        *(_WAIT, _STARTED, _GENERATED, _REQUESTS, *_POOLS),
    }
)
"""The samples that figures are made of."""

_HELD = ("working", "pinned", "in_transfer")
_MEMORY = (RequestPhase.WAITING.value, RequestPhase.RETRACTED.value)
_MOST_VARIATION = 50.0


@dataclass(frozen=True)
class NodeFigures:
    """seconds: that they are of. busy: seconds of forwards. steps: forwards. rooms: prompts that
    were computed for other nodes; variation: of their times, the variance over the mean's square.
    tokens: given to callers. running: answers that are written; waiting: requests without memory.
    held: share of its memory that cannot be given to others. waits: by name of a prefill node,
    seconds of prefill that it has left."""

    seconds: float
    busy: float
    steps: float
    rooms: float
    variation: float
    tokens: float
    running: float
    waiting: float
    held: float
    waits: dict[str, float]


def figures(earlier: Samples, later: Samples, seconds: float) -> NodeFigures | None:
    """None where they are of two lives of the node. seconds: between them, over 0."""
    if one(earlier, _STARTED) != one(later, _STARTED):
        return None
    gained = difference(later, earlier)
    states = by_label(later, _REQUESTS, "state")
    return NodeFigures(
        seconds=seconds,
        busy=_gained(gained, f"{_STEP}_sum"),
        steps=_gained(gained, f"{_STEP}_count"),
        rooms=_gained(gained, f"{_ROOM}_count"),
        variation=_variation(buckets_of(gained, _ROOM)),
        tokens=_gained(gained, _GENERATED),
        running=states.get(RequestPhase.DECODING.value, 0.0),
        waiting=sum(states.get(state, 0.0) for state in _MEMORY),
        held=max(_held(by_label(later, pool, "owner")) for pool in _POOLS),
        waits={name: max(0.0, wait) for name, wait in by_label(later, _WAIT, "peer").items()},
    )


def _gained(gained: Samples, name: str) -> float:
    return max(0.0, one(gained, name) or 0.0)


def _held(owners: dict[str, float]) -> float:
    total = sum(owners.values())
    return sum(owners.get(owner, 0.0) for owner in _HELD) / total if total > 0 else 0.0


def _variation(buckets: Buckets) -> float:
    """Each observation counts as the middle of its bucket; 1 without any."""
    low = below = many = sums = squares = 0.0
    for bound, count in buckets.items():
        here = max(0.0, count - below)
        value = low if bound == float("inf") else (low + bound) / 2
        many, sums, squares = many + here, sums + here * value, squares + here * value * value
        low, below = min(bound, 1e9), max(below, count)
    if many <= 0 or sums <= 0:
        return 1.0
    return min(_MOST_VARIATION, max(0.0, squares * many / sums**2 - 1))
