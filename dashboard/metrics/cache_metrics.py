"""Metrics of a node's cache: its arena, the tiers below it, and its evictions.

cache_families() and tier_families() turn a node's report into Prometheus families. Pure: the
numbers come from the tree and the engine. The cache's counters come from the tree itself, so this
node's token counts include retracted and aborted requests. request_metrics.py counts each request
once.

EvictionMetrics counts evictions by kind and by the policy's score. Borrows its registry. One
thread.
"""

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tasuki.dashboard.memory_use import MemoryUse, memory_use
from tasuki.dashboard.observed import NodeReport
from tasuki.engine.messages import Evicted, RequestPhase, Stage, StatsReply, TierReport

from .families import Instruments, counter, gauge

_SLAB_USES = ("free", "pages", "slots")


def by_owner(counts: Mapping[str, int]) -> dict[str, int]:
    """Return a pool's pages or slots by owner; their sum is the whole pool. pinned and evictable
    belong to the radix tree. counts: from the engine's stats."""
    return {
        "free": counts["free"],
        "working": counts["working"],
        "pinned": counts["pinned"],
        "evictable": counts["tree"] - counts["pinned"],
        "in_transfer": counts["granted"],
        "quarantined": counts["quarantined"],
    }


def arena_use(stats: StatsReply) -> MemoryUse | None:
    """Return the use of the arena's memory in these stats, from memory_use(), None included."""
    return memory_use(
        by_owner(stats.pages),
        by_owner(stats.slots),
        sum(stats.slabs.get(use, 0) for use in _SLAB_USES),
        stats.slab_bytes,
        stats.each_bytes.get("page", 0),
    )


def cache_families(report: NodeReport) -> Iterator[Metric]:
    stats = report.stats
    tree = stats.tree
    for pool, text in (("pages", "KV pages"), ("slots", "State slots")):
        counts: Mapping[str, int] = getattr(stats, pool)
        yield gauge(f"cache_{pool}", f"{text} by owner.", "owner", by_owner(counts))
    slabs = {use: stats.slabs[use] for use in _SLAB_USES}
    yield gauge("cache_slabs", "Slabs of the arena by what they hold.", "use", slabs)
    text = "Bytes of the arena: in use, which no eviction can take; cached for later prompts; free."
    memory = arena_use(stats)
    if memory is not None:
        parts = {"in_use": memory.in_use, "cached": memory.cached, "free": memory.free}
        yield gauge("arena_bytes", text, "use", parts)
    each = "Bytes of one page, over all layers, and of one state slot."
    yield gauge("cache_each_bytes", each, "kind", stats.each_bytes)
    parts_of = "Bytes of each part of a page or slot, over all layers."
    yield gauge("cache_part_bytes", parts_of, "part", stats.part_bytes)
    yield gauge("cache_slab_bytes", "Of one slab, in the arena and below.", stats.slab_bytes)
    yield gauge("cache_nodes", "Nodes of the radix tree.", tree["nodes"])
    yield gauge("cache_checkpoints", "Checkpoints in the tree.", tree["checkpoints"])
    yield gauge("cache_leases", "Leases held by requests.", tree["leases"])
    yield gauge("cache_cursors", "Cursors of open sessions.", tree["cursors"])
    evicted = {"page": tree["evicted_pages"], "checkpoint": tree["evicted_checkpoints"]}
    yield counter("cache_evictions", "Evicted from the tree, by kind.", "kind", evicted)
    yield counter("cache_leased_requests", "Leases cut to compute.", tree["leased_requests"])
    yield counter("cache_prompt_tokens", "Prompt tokens looked up.", tree["prompt_tokens"])
    yield counter("cache_usable_tokens", "Prompt tokens found usable.", tree["usable_tokens"])
    looked_up = "Prompt tokens that were looked up, each request's once, as it ends."
    yield counter("looked_up_tokens", looked_up, stats.looked_up_tokens)
    found = "Of the same prompt tokens, those that were usable."
    yield counter("looked_up_usable_tokens", found, stats.usable_tokens)
    gave_way = "Times that a request gave its memory back, to go on later."
    yield counter("retractions", gave_way, stats.retractions)
    yield counter("cache_lost_tokens", "Prompt tokens not usable, by cause.", "cause", stats.lost)
    yield gauge(
        "cache_policy_saved_tokens",
        "Prefill that each policy's shadow would have saved recently.",
        "policy",
        stats.policies,
    )
    followed = {policy: int(policy == stats.policy) for policy in {*stats.policies, stats.policy}}
    yield gauge("cache_policy_followed", "1 for the policy that evicts.", "policy", followed)
    live = (phase for phase in RequestPhase if phase.stage is not Stage.OVER)
    requests = {phase.value: stats.requests.get(phase, 0) for phase in live}
    yield gauge("requests", "Requests in the engine by state.", "state", requests)
    yield gauge("cache_integrity", "1 while every invariant holds.", int(stats.integrity == "ok"))
    yield gauge("prefill_nodes", "Prefill nodes by state.", "state", report.prefill_nodes)
    yield gauge(
        "peer_engine_seconds",
        "Since a linked node's engine last ended a step; 0 where it has nothing to do.",
        "peer",
        {peer: progress.engine_seconds for peer, progress in report.peers.items()},
    )
    yield gauge(
        "peer_front_seconds",
        "For how long a linked node's callers have waited for its event loop.",
        "peer",
        {peer: progress.front_seconds for peer, progress in report.peers.items()},
    )
    yield gauge(
        "prefill_node_usable_prefixes",
        "Prefixes that a prefill node is known to be able to resume prompts from.",
        "peer",
        {n.address: n.usable_prefixes for n in report.links if n.usable_prefixes is not None},
    )
    yield gauge(
        "prefill_node_wait_seconds",
        "Prefill that a prefill node had to do when it last said so.",
        "peer",
        {n.address: n.wait_seconds for n in report.links if n.wait_seconds is not None},
    )
    yield counter(
        "chat_tokens",
        "Tokens of rendered chats by source: encoded for it, or remembered from an earlier one.",
        "source",
        report.chat_tokens,
    )
    yield counter(
        "handover_windows", "Layer chunks sent here, by outcome.", "outcome", report.windows
    )


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
    """Yield the metric families of the cache's lower tiers; none for a node without tiers."""
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


# Score: chance of use in a second x prefill saved / page. The bounds are the decades seen in
# traffic.
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
