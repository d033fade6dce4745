"""Histograms of evictions by kind and by the policy's score.

Borrows its registry. One thread.
"""

from prometheus_client import CollectorRegistry

from tasuki.engine.messages import Evicted

from .instruments import Instruments

# Chance of use in a second x prefill saved / page, over the decades that traffic shows.
_SCORES = tuple(10.0**power for power in range(-9, 4))


class EvictionMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        made = Instruments(registry)
        self._slabs = made.counter(
            "cache_evicted_slabs",
            "Room that evictions made, in slabs, by kind of what was evicted.",
            "kind",
        )
        self._score = made.histogram(
            "cache_eviction_score",
            "What the policy held evicted states to be worth; none while it goes by age.",
            _SCORES,
        )

    def observe(self, evicted: Evicted) -> None:
        for eviction in evicted.evictions:
            self._slabs.labels(eviction.kind).inc(eviction.slabs)
            if eviction.score is not None and eviction.kind != "pages":
                self._score.observe(eviction.score)
