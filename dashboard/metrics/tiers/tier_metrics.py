"""Memory below the arena as Prometheus families. Pure: the tree and the engine count."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tasuki.engine.messages import TierReport

_GAUGES = (
    ("slabs", "use", "Slabs of a tier below the arena: free, and all."),
    ("held", "kind", "Pages and slots in a tier that are of use."),
    ("moving", "what", "Copies under way between a tier and the arena, and writes that wait."),
    (
        "budget_bytes",
        "what",
        "Of a tier with a write budget: what may be written now, and what it gains a second.",
    ),
)
_COUNTERS = (
    ("loads", "end", "Loads from a tier by how they ended; those that are done were of use."),
    ("writes", "end", "Writes to a tier by how they ended; those that are done were of use."),
    ("bytes", "direction", "Moved between a tier and the arena, of what was of use."),
    ("dropped", "kind", "Pages and slots that a tier gave up."),
    (
        "kept",
        "what",
        "Of a tier that outlives its node, by what was done: on a disk states that stood again, "
        "in a remote store those that others may find; torn records; what was not taken.",
    ),
)


def tier_families(tiers: Sequence[TierReport]) -> Iterator[Metric]:
    """None of a node without tiers."""
    if not tiers:
        return
    kinds = ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS))
    for kind, families in kinds:
        for name, label, text in families:
            if any(getattr(tier, name) for tier in tiers):
                family = kind(f"tasuki_tier_{name}", text, labels=["tier", label])
                yield _filled(family, tiers, name)


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily, tiers: Sequence[TierReport], name: str
) -> Metric:
    for tier in tiers:
        counts: dict[str, int] = getattr(tier, name)
        for key in sorted(counts):
            family.add_metric([tier.name, key], counts[key])
    return family
