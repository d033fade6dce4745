"""A node's report as Prometheus families. Pure functions: nothing is counted here.

Counters come from the tree itself, so this node's waterfall includes requests that were retracted
or aborted, which the counters of request_metrics.py tell once each.
"""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from .node_report import NodeReport

_OWNERS = ("free", "working", "tree", "granted", "quarantined")


def cache_families(report: NodeReport) -> Iterator[Metric]:
    stats = report.stats
    tree = stats.tree
    for pool, text in (("pages", "KV pages"), ("slots", "State slots")):
        counts: Mapping[str, int] = getattr(stats, pool)
        owned = {owner: counts[owner] for owner in _OWNERS}
        yield _gauge(f"cache_{pool}", f"{text} by owner.", "owner", owned)
        yield _gauge(f"cache_{pool}_pinned", f"{text} held by leases.", counts["pinned"])
    slabs = {use: stats.slabs[use] for use in ("free", "pages", "slots")}
    yield _gauge("cache_slabs", "Slabs of the arena by what they hold.", "use", slabs)
    yield _gauge("cache_nodes", "Nodes of the radix tree.", tree["nodes"])
    yield _gauge("cache_checkpoints", "Checkpoints in the tree.", tree["checkpoints"])
    yield _gauge("cache_leases", "Leases held by requests.", tree["leases"])
    yield _gauge("cache_cursors", "Cursors of open sessions.", tree["cursors"])
    evicted = {"page": tree["evicted_pages"], "checkpoint": tree["evicted_checkpoints"]}
    yield _counter("cache_evictions", "Evicted from the tree, by kind.", "kind", evicted)
    yield _counter("cache_leased_requests", "Leases cut to compute.", tree["leased_requests"])
    yield _counter("cache_prompt_tokens", "Prompt tokens looked up.", tree["prompt_tokens"])
    yield _counter("cache_usable_tokens", "Prompt tokens found usable.", tree["usable_tokens"])
    yield _counter("cache_lost_tokens", "Prompt tokens not usable, by cause.", "cause", stats.lost)
    yield _gauge("requests", "Requests in the engine by state.", "state", stats.requests)
    yield _gauge("cache_integrity", "1 while every invariant holds.", int(stats.integrity == "ok"))
    yield _gauge("prefill_nodes", "Prefill nodes by state.", "state", report.prefill_nodes)
    yield _counter("handover_windows", "Windows sent here, by outcome.", "outcome", report.windows)


def _gauge(name: str, text: str, *value: str | int | Mapping[str, int]) -> Metric:
    return _filled(GaugeMetricFamily, name, text, *value)


def _counter(name: str, text: str, *value: str | int | Mapping[str, int]) -> Metric:
    return _filled(CounterMetricFamily, name, text, *value)


def _filled(
    family: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    text: str,
    *value: str | int | Mapping[str, int],
) -> Metric:
    """value: one number, or a label and the number of each of its values."""
    match value:
        case (int(number),):
            return family(f"tasuki_{name}", text, value=number)
        case (str(label), counts) if isinstance(counts, Mapping):
            metric = family(f"tasuki_{name}", text, labels=[label])
            for key in sorted(counts):
                metric.add_metric([key], counts[key])
            return metric
    raise TypeError(f"{name}: neither a number nor a label with its numbers")
