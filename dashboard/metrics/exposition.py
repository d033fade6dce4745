"""A node's metrics: what its requests were answered and what its cache counts, in Prometheus' text
format.

Owns a registry of its own, so that several nodes of one process share nothing. One thread.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from tasuki.dashboard.observed import ObservedMessage
from tasuki.engine import messages as m

from .cache_metrics import cache_families
from .compat_names import translated
from .copied_states import CopiedStateMetrics
from .engine_metrics import engine_families
from .eviction_metrics import EvictionMetrics
from .fault_metrics import FaultMetrics
from .fleet.caller_metrics import CallerMetrics
from .fleet.node_metrics import node_families
from .node_report import NodeReport
from .pull_metrics import PullMetrics
from .request_metrics import RequestMetrics
from .room_metrics import RoomMetrics
from .tiers.tier_metrics import tier_families

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """dialect: other names to offer beside our own (dialects.DIALECTS)."""

    def __init__(self, dialect: str = "none") -> None:
        self._registry = CollectorRegistry()
        self._requests = RequestMetrics(self._registry)
        self._callers = CallerMetrics(self._registry)
        self._rooms = RoomMetrics(self._registry)
        self._evictions = EvictionMetrics(self._registry)
        self._faults = FaultMetrics(self._registry)
        self._pulls = PullMetrics(self._registry)
        self._copied = CopiedStateMetrics(self._registry)
        self._dialect = dialect

    def observe(self, message: ObservedMessage) -> None:
        match message:
            case m.Submit():
                self._callers.observe(message)
            case m.Finished() | m.Rejected():
                self._callers.observe(message)
                self._requests.observe(message)
            case m.RoomEnded():
                self._rooms.observe(message)
            case m.Evicted():
                self._evictions.observe(message)
            case m.PullCommitted() | m.PullLost():
                self._pulls.observe(message)
            case m.StateLeft() | m.StateFetched():
                self._copied.observe(message)
            case m.PeersChanged() | m.PullFenced():
                pass
            case _:
                self._faults.observe(message)

    def count_tokens(self, count: int) -> None:
        """So many were emitted."""
        self._requests.count_tokens(count)

    def families(self, report: NodeReport) -> list[Metric]:
        """All that is measured, under our own names."""
        return [
            *node_families(report),
            *self._registry.collect(),
            *cache_families(report),
            *engine_families(report),
            *tier_families(report.stats.tiers),
        ]

    def text(self, report: NodeReport) -> bytes:
        families = self.families(report)
        return generate_latest(_Families(chain(families, translated(families, self._dialect))))


class _Families(CollectorRegistry):
    """Families that were collected already, in the shape that generate_latest takes."""

    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families
