"""A node's metrics in Prometheus' text format: its own, and the same under other engines' names.

node_families(): the node's name and its links. health_families(): its state, failed calls,
certificates and disks. engine_families(): the engine's steps, and the hand-overs sent by a prefill
node. Pure functions.

translated() gives tasuki's numbers under the names of vLLM and SGLang, for existing dashboards.
Pure. Only numbers of equal meaning are renamed.

GenAiMetrics counts by OpenTelemetry's GenAI conventions, version 1.41.1, in Prometheus's spelling.
The metrics are gen_ai.server.request.duration, time_to_first_token and time_per_output_token, with
the conventions' bounds. It borrows its registry, and owns the operations of requests in flight.

Exposition owns a registry of its own, so several nodes of one process share nothing. One thread.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import chain

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

from tasuki.dashboard.dialects import GEN_AI
from tasuki.dashboard.observed import READY, FrontReport, NodeReport, NodeState, ObservedMessage
from tasuki.engine import messages as m

from .cache_metrics import EvictionMetrics, cache_families, tier_families
from .families import counter, gauge, histogram
from .picture_metrics import picture_families
from .request_metrics import CallerMetrics, RequestMetrics, seconds_per_token
from .transfer_metrics import CopiedStateMetrics, FaultMetrics, PrefillTransferMetrics, PullMetrics

_RENAMED = {
    "vllm": {
        "tasuki_looked_up_tokens": "vllm:prefix_cache_queries",
        "tasuki_looked_up_usable_tokens": "vllm:prefix_cache_hits",
        "tasuki_retractions": "vllm:num_preemptions",
        "tasuki_request_prompt_tokens": "vllm:prompt_tokens",
        "tasuki_generated_tokens": "vllm:generation_tokens",
        "tasuki_time_to_first_token_seconds": "vllm:time_to_first_token_seconds",
        "tasuki_time_per_output_token_seconds": "vllm:request_time_per_output_token_seconds",
        "tasuki_request_duration_seconds": "vllm:e2e_request_latency_seconds",
    },
    "sglang": {
        "tasuki_request_prompt_tokens": "sglang:prompt_tokens",
        "tasuki_request_usable_tokens": "sglang:cached_tokens",
        "tasuki_retractions": "sglang:num_retracted_requests",
        "tasuki_generated_tokens": "sglang:generation_tokens",
        "tasuki_time_to_first_token_seconds": "sglang:time_to_first_token_seconds",
        "tasuki_request_duration_seconds": "sglang:e2e_request_latency_seconds",
    },
}


def translated(families: Iterable[Metric], dialect: str) -> Iterator[Metric]:
    """Yield the families under the names of another engine, to add to tasuki's own. families: all
    families of a node with an engine's report. dialect: one of dialects.DIALECTS. Yields nothing
    for a dialect without renamed metrics: GenAiMetrics counts its own."""
    if dialect not in _RENAMED:
        return
    by_name = {family.name: family for family in families}
    for ours, theirs in _RENAMED[dialect].items():
        yield _renamed(by_name[ours], theirs)
    requests, pages, slots = (
        _values(by_name[name])
        for name in ("tasuki_requests", "tasuki_cache_pages", "tasuki_cache_slots")
    )
    running = sum(count for name, count in requests.items() if m.RequestPhase(name).is_running)
    waiting = sum(count for name, count in requests.items() if m.RequestPhase(name).is_queued)
    if dialect == "vllm":
        yield GaugeMetricFamily("vllm:num_requests_running", "Running.", running)
        yield GaugeMetricFamily("vllm:num_requests_waiting", "Waiting.", waiting)
        yield GaugeMetricFamily("vllm:kv_cache_usage_perc", "Pages in use, of 1.", _used(pages))
        return
    yield GaugeMetricFamily("sglang:num_running_reqs", "Running.", running)
    yield GaugeMetricFamily("sglang:num_queue_reqs", "Waiting.", waiting)
    yield GaugeMetricFamily("sglang:token_usage", "Pages in use, of 1.", _used(pages))
    yield GaugeMetricFamily("sglang:mamba_usage", "State slots in use, of 1.", _used(slots))
    prompt, usable = (
        sum(_values(by_name[f"tasuki_{name}_tokens"]).values())
        for name in ("looked_up", "looked_up_usable")
    )
    yield GaugeMetricFamily(
        "sglang:cache_hit_rate", "Usable of prompt tokens, of 1.", usable / prompt if prompt else 0
    )


def _renamed(family: Metric, name: str) -> Metric:
    # An unlabelled counter has its labels as an empty tuple; the family is rebuilt unchanged.
    metric = Metric(name, family.documentation, family.type)
    metric.samples = [
        Sample(name + sample.name.removeprefix(family.name), *sample[1:])
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]
    return metric


def _values(family: Metric) -> dict[str, float]:
    """Return a family's values by the value of its one label; "" for a sample without labels."""
    return {
        next(iter(sample.labels.values()), ""): sample.value
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def _used(pool: dict[str, float]) -> float:
    total = sum(pool.values())
    return 1 - pool["free"] / total if total else 0.0


METRICS = (
    "gen_ai.server.request.duration",
    "gen_ai.server.time_per_output_token",
    "gen_ai.server.time_to_first_token",
)
_PROVIDER = "tasuki"
_REQUEST = (*(0.01 * 2**power for power in range(14)),)
_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25),
    *(0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
_LABELS = (
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.request.model",
    "gen_ai.response.model",
)
ERROR = "error.type"
LABELS = (*_LABELS, ERROR)
_IN_FLIGHT = 1 << 16


class GenAiMetrics:
    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        """Set up the metrics. model: the model's name used by clients, as a label."""
        self._model = model
        duration, per_token, first_token = METRICS
        made = (
            (duration, "From arrival to the end.", _REQUEST, LABELS),
            (per_token, "Mean over an answer's tokens after the first.", _TOKEN, _LABELS),
            (first_token, "From arrival to the first token.", _FIRST_TOKEN, _LABELS),
        )
        self._duration, self._per_token, self._first_token = (
            Histogram(
                f"{_spelt(name)}_seconds",
                text,
                [_spelt(label) for label in labels],
                buckets=bounds,
                registry=registry,
            )
            for name, text, bounds, labels in made
        )
        self._operations: OrderedDict[m.RequestId, str] = OrderedDict()

    def begin(self, request: m.RequestId, operation: str) -> None:
        """Record the operation of a beginning request. operation: OpenTelemetry's name of it, as in
        RequestContext.operation."""
        self._operations[request] = operation
        while len(self._operations) > _IN_FLIGHT:
            self._operations.popitem(last=False)

    def observe(self, message: m.Finished | m.Rejected) -> None:
        """Count a finished request; a rejected one is not counted. A request without begin() has no
        client here, such as a transfer, and is not counted."""
        operation = self._operations.pop(message.request_id, None)
        if operation is None or isinstance(message, m.Rejected):
            # Its duration is not known.
            return
        usage = message.usage
        labels = (operation, _PROVIDER, self._model, self._model)
        aborted = message.reason is m.FinishReason.ABORT
        error = m.FinishReason.ABORT.value if aborted else ""
        self._duration.labels(*labels, error).observe(usage.seconds)
        if aborted:
            return
        if usage.completion_tokens:
            self._first_token.labels(*labels).observe(usage.time_to_first_token)
        per_token = seconds_per_token(usage)
        if per_token is not None:
            self._per_token.labels(*labels).observe(per_token)


def _spelt(name: str) -> str:
    return name.replace(".", "_")


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
        yield counter(
            "handover_sent_windows", "Layer chunks of transfers sent whole.", sent.windows
        )
        yield counter("handover_sent_bytes", "Bytes of transfers sent whole.", sent.bytes)
        seconds = {"hidden": sent.hidden_seconds, "exposed": sent.exposed_seconds}
        yield counter(
            "handover_sent_seconds",
            "Sending beside the forward (hidden) and after its end (exposed).",
            "when",
            seconds,
        )


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """All metrics of a node, as text for Prometheus. dialect: engine names to offer in addition to
    tasuki's own (dialects.DIALECTS). model: the model's name used by clients."""

    def __init__(self, dialect: str = "none", model: str = "") -> None:
        self._registry = CollectorRegistry()
        self._requests = RequestMetrics(self._registry)
        self._callers = CallerMetrics(self._registry)
        self._transfers = PrefillTransferMetrics(self._registry)
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
            case m.TransferEnded():
                self._transfers.observe(message)
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
        """Record the admission of a client's request. operation: OpenTelemetry's name of it, as in
        RequestContext.operation."""
        if self._gen_ai is not None:
            self._gen_ai.begin(request, operation)

    def count_tokens(self, count: int) -> None:
        """Count `count` tokens of answers sent to clients."""
        self._requests.count_tokens(count)

    def families(self, report: NodeReport | None, front: FrontReport = READY) -> list[Metric]:
        """Return all families under tasuki's own names. report: the engine's report; None leaves
        the engine's metrics out. front: the API server's report."""
        counted = [*health_families(front), *self._registry.collect()]
        if report is None:
            return counted
        return [
            *node_families(report),
            *counted,
            *cache_families(report),
            *engine_families(report),
            *tier_families(report.stats.tiers),
            *picture_families(report.stats.pictures, report.pictures),
        ]

    def text(self, report: NodeReport | None, front: FrontReport = READY) -> bytes:
        """Return all metrics, the dialect's included, as text in Prometheus' format. report, front:
        arguments of families()."""
        families = self.families(report, front)
        others = () if report is None else translated(families, self._dialect)
        return generate_latest(_Families(chain(families, others)))


class _Families(CollectorRegistry):
    """A registry of metric families already collected, as generate_latest needs it."""

    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families
