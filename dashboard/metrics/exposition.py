"""A node's metrics in Prometheus' text format, with those of the node itself.

Metrics of a node beside its cache, as Prometheus families. Pure functions.

node_families(): the node's name and its links. health_families(): its state, failed calls,
certificates and disks. engine_families(): the engine's steps, and the sending of a prefill node.

A node's metrics: what its requests were answered and what its cache counts, in Prometheus' text
format.

Owns a registry of its own, so that several nodes of one process share nothing. One thread.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from tasuki.dashboard.dialects import GEN_AI
from tasuki.dashboard.observed import READY, FrontReport, NodeReport, NodeState, ObservedMessage
from tasuki.engine import messages as m

from .cache_metrics import EvictionMetrics, cache_families, tier_families
from .compat_names import GenAiMetrics, translated
from .families import counter, gauge, histogram
from .request_metrics import CallerMetrics, RequestMetrics
from .transfer_metrics import CopiedStateMetrics, FaultMetrics, PullMetrics, RoomMetrics

_ABOUT = ("node", "role", "model", "version")
_STORED = ("weights", "kv", "states", "draft_layers")


def node_families(report: NodeReport) -> Iterator[Metric]:
    about = report.about
    info = GaugeMetricFamily(
        "tasuki_node_info", "1; its labels say which node this is.", labels=_ABOUT
    )
    if about:
        info.add_metric([about.get(name, "") for name in _ABOUT], 1)
    yield info
    stored = GaugeMetricFamily(
        "tasuki_stored_info",
        "1; its labels say how weights, keys and values, and states are stored, and for how many "
        "draft layers.",
        labels=_STORED,
    )
    if report.stats.stored:
        stored.add_metric([report.stats.stored.get(name, "") for name in _STORED], 1)
    yield stored
    if "started_at" in about:
        yield gauge(
            "node_start_time_seconds",
            "When the node started, since 1970.",
            float(about["started_at"]),
        )
    links = GaugeMetricFamily(
        "tasuki_handover_link_state",
        "1 for each prefill node, by its name, its address and the link's state.",
        labels=("peer", "address", "state"),
    )
    for link in report.links:
        links.add_metric([link.name or link.address, link.address, link.state.value], 1)
    yield links


def health_families(front: FrontReport) -> Iterator[Metric]:
    states = {state.value: int(state is front.state) for state in NodeState}
    yield gauge("node_state", "1 for the state that the node is in.", "state", states)
    yield gauge(
        "engine_silent_seconds",
        "For how long the engine has owed its counters; 0 where those shown here are from now.",
        front.silent_seconds,
    )
    yield counter(
        "calls_failed",
        "Clients' calls that an error refused or ended, by its kind, over HTTP and gRPC.",
        "kind",
        front.failures,
    )
    yield gauge(
        "certificate_not_after_seconds",
        "Until when certificates in use are valid, since 1970, by the setting that names them.",
        "setting",
        front.certificates,
    )
    disks = GaugeMetricFamily(
        "tasuki_disk_bytes",
        "Of the file system of a folder, by the setting that names it: free, and all.",
        labels=("setting", "what"),
    )
    for setting, room in sorted(front.disks.items()):
        disks.add_metric((setting, "free"), room.free)
        disks.add_metric((setting, "total"), room.total)
    yield disks


def engine_families(report: NodeReport) -> Iterator[Metric]:
    steps = report.stats.steps
    if steps is not None:
        yield histogram("engine_step", "From one forward's end to the next one's.", steps.steps)
        yield histogram(
            "engine_idle", "The device had nothing to run between two forwards.", steps.idle
        )
        if steps.drafts:
            yield counter(
                "draft_steps",
                "Steps of answers of which some may be drafted, by the most drafts of one.",
                "drafts",
                steps.drafts,
            )
    if report.stats.early:
        yield counter(
            "early_steps",
            "Decode steps behind the layer barrier, by outcome.",
            "outcome",
            report.stats.early,
        )
    sent = report.sent
    if sent is not None:
        yield counter("handover_sent_rooms", "Rooms sent, by outcome.", "outcome", sent.rooms)
        yield counter("handover_sent_windows", "Windows of rooms sent whole.", sent.windows)
        yield counter("handover_sent_bytes", "Bytes of rooms sent whole.", sent.bytes)
        seconds = {"hidden": sent.hidden_seconds, "exposed": sent.exposed_seconds}
        yield counter(
            "handover_sent_seconds",
            "Sending beside the forward (hidden) and after its end (exposed).",
            "when",
            seconds,
        )


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
