"""What is wrong with a node, as far as its metrics show it, the worst first. Pure."""

from tasuki.dashboard.trouble import BUSY, Level, Trouble, troubles_of, worst_first

from .exposition_text import by_label, one
from .histogram import buckets_of, quantile
from .metric_names import FIRST_TOKEN, INTEGRITY, LINK_STATE, LOST_HANDOVERS, PER_TOKEN, REFUSED
from .recent_samples import Gained, RecentSamples
from .targets import Targets


def troubles(recent: RecentSamples, targets: Targets) -> tuple[Trouble, ...]:
    """Of a node that answers."""
    gained = recent.gained
    refused = {} if gained is None else by_label(gained.added, REFUSED, "kind")
    lost = {} if gained is None else by_label(gained.added, LOST_HANDOVERS, "cause")
    found = troubles_of(
        invariants_hold=one(recent.latest, INTEGRITY) != 0.0,
        links=by_label(recent.latest, LINK_STATE, "state"),
        lost_handovers=sum(lost.values()),
        refused=sum(refused.get(kind.value, 0.0) for kind in BUSY),
    )
    late = [] if gained is None else _lateness(gained, targets)
    return worst_first([*found, *late])


def _lateness(gained: Gained, targets: Targets) -> list[Trouble]:
    found = []
    for name, words, target in (
        (FIRST_TOKEN, "TTFT", targets.first_token),
        (PER_TOKEN, "ITL", targets.per_token),
    ):
        late = quantile(buckets_of(gained.added, name), 0.95)
        if late is not None and late > target:
            found.append(Trouble(Level.SLOW, f"{words} p95 over {_seconds(target)}"))
    return found


def _seconds(value: float) -> str:
    return f"{value:g} s" if value >= 1 else f"{value * 1000:g} ms"
