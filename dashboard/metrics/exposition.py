"""A node's metrics: what its requests were answered and what its cache counts, in Prometheus' text
format.

Owns a registry of its own, so that several nodes of one process share nothing. One thread.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from tasuki.dashboard.dialects import GEN_AI
from tasuki.dashboard.observed import READY, FrontReport, NodeReport, ObservedMessage
from tasuki.engine import messages as m

from .cache_metrics import EvictionMetrics, cache_families, tier_families
from .caller_metrics import CallerMetrics
from .compat_names import GenAiMetrics, translated
from .node_metrics import engine_families, health_families, node_families
from .request_metrics import RequestMetrics
from .transfer_metrics import CopiedStateMetrics, FaultMetrics, PullMetrics, RoomMetrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """dialect: other names to offer beside our own (dialects.DIALECTS). model: as clients name
    it."""

    def __init__(self, dialect: str = "none", model: str = "") -> None:
        self._registry = CollectorRegistry()
        self._requests = RequestMetrics(self._registry)
        self._callers = CallerMetrics(self._registry)
        self._rooms = RoomMetrics(self._registry)
        self._evictions = EvictionMetrics(self._registry)
        self._faults = FaultMetrics(self._registry)
        self._pulls = PullMetrics(self._registry)
        self._copied = CopiedStateMetrics(self._registry)
        self._dialect = dialect
        self._gen_ai = GenAiMetrics(self._registry, model) if dialect == GEN_AI else None

    def observe(self, message: ObservedMessage) -> None:
        match message:
            case m.Submit():
                self._callers.observe(message)
            case m.Finished() | m.Rejected():
                self._callers.observe(message)
                self._requests.observe(message)
                if self._gen_ai is not None:
                    self._gen_ai.observe(message)
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

    def begin(self, request: m.RequestId, operation: str) -> None:
        """A client's request was let in. operation: as RequestContext.operation."""
        if self._gen_ai is not None:
            self._gen_ai.begin(request, operation)

    def count_tokens(self, count: int) -> None:
        """So many were emitted."""
        self._requests.count_tokens(count)

    def families(self, report: NodeReport | None, front: FrontReport = READY) -> list[Metric]:
        """All that is measured, under our own names. report: of the engine; None where there
        is none: then what it counts is left out."""
        counted = [*health_families(front), *self._registry.collect()]
        if report is None:
            return counted
        return [
            *node_families(report),
            *counted,
            *cache_families(report),
            *engine_families(report),
            *tier_families(report.stats.tiers),
        ]

    def text(self, report: NodeReport | None, front: FrontReport = READY) -> bytes:
        """report, front: as of families()."""
        families = self.families(report, front)
        others = () if report is None else translated(families, self._dialect)
        return generate_latest(_Families(chain(families, others)))


class _Families(CollectorRegistry):
    """Families that were collected already, in the shape that generate_latest takes."""

    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families
