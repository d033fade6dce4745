"""Metrics under the names of others: vLLM, SGLang and OpenTelemetry.

translated() gives our numbers under the names of vLLM and SGLang, so that existing boards work.
Pure. Only numbers of equal meaning are renamed; numbers of tasuki alone keep their names.

GenAiMetrics counts by OpenTelemetry's GenAI conventions, version 1.41.1, in Prometheus's spelling:
gen_ai.server.request.duration and the two beside it. The bounds of the histograms are the
conventions'. It borrows its registry, and owns the operations of requests in flight. One thread.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

from tasuki.engine.messages import Finished, FinishReason, Rejected, RequestId, RequestPhase

from .request_metrics import seconds_per_token

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
    """Families to add to our own. dialect: one of dialects.DIALECTS, of which GenAiMetrics
    counts its own."""
    if dialect not in _RENAMED:
        return
    by_name = {family.name: family for family in families}
    for ours, theirs in _RENAMED[dialect].items():
        yield _renamed(by_name[ours], theirs)
    requests, pages, slots = (
        _values(by_name[name])
        for name in ("tasuki_requests", "tasuki_cache_pages", "tasuki_cache_slots")
    )
    running = sum(count for name, count in requests.items() if RequestPhase(name).is_running)
    waiting = sum(count for name, count in requests.items() if RequestPhase(name).is_queued)
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
    # An unlabelled counter carries its labels as an empty tuple; the family is rebuilt as it is.
    metric = Metric(name, family.documentation, family.type)
    metric.samples = [
        Sample(name + sample.name.removeprefix(family.name), *sample[1:])
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]
    return metric


def _values(family: Metric) -> dict[str, float]:
    """By the value of its one label; "" where it has none."""
    return {
        next(iter(sample.labels.values()), ""): sample.value
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def _used(pool: dict[str, float]) -> float:
    total = sum(pool.values())
    return 1 - pool["free"] / total if total else 0.0


GEN_AI = "gen_ai"
"""The dialect's name."""
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
        """model: as clients name it."""
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
        self._operations: OrderedDict[RequestId, str] = OrderedDict()

    def begin(self, request: RequestId, operation: str) -> None:
        """operation: as RequestContext.operation."""
        self._operations[request] = operation
        while len(self._operations) > _IN_FLIGHT:
            self._operations.popitem(last=False)

    def observe(self, message: Finished | Rejected) -> None:
        """A request that began elsewhere, as a room, is not a client's and counts nowhere."""
        operation = self._operations.pop(message.request_id, None)
        if operation is None or isinstance(message, Rejected):
            # Nothing is known of how long it took.
            return
        usage = message.usage
        labels = (operation, _PROVIDER, self._model, self._model)
        aborted = message.reason is FinishReason.ABORT
        error = FinishReason.ABORT.value if aborted else ""
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
