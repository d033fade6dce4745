"""A node's metrics: what its requests were told and what its cache counts, in Prometheus' text
format.

Owns a registry of its own, so that several nodes of one process share nothing. One thread.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from ..engine.messages import Finished, Rejected, TokenOut
from .cache_metrics import cache_families
from .field_names import translated
from .node_report import NodeReport
from .request_metrics import RequestMetrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """dialect: other names to offer beside our own (field_names.DIALECTS)."""

    def __init__(self, dialect: str = "none") -> None:
        self._registry = CollectorRegistry()
        self._requests = RequestMetrics(self._registry)
        self._dialect = dialect

    def observe(self, message: TokenOut | Finished | Rejected) -> None:
        self._requests.observe(message)

    def text(self, report: NodeReport) -> bytes:
        families = [*self._registry.collect(), *cache_families(report)]
        return generate_latest(_Families(chain(families, translated(families, self._dialect))))


class _Families(CollectorRegistry):
    """Families that were collected already, in the shape that generate_latest takes."""

    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families
