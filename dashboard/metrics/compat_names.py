"""The same numbers under the names of vLLM and SGLang, so that existing boards work.

Only what means the same is renamed; what tasuki alone knows keeps its own name. Pure functions.
"""

from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

from tasuki.engine.messages import RequestPhase

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
    """Families to add to our own. dialect: one of dialects.DIALECTS, of which gen_ai_metrics.py
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
