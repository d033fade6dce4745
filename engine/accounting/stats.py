"""Counters of one engine as a message: pools by owner, the hit waterfall, requests by state; and
the cache's tree by one call, whose cost its limit bounds."""

from collections import Counter
from collections.abc import Iterable, Sequence

from tasuki.engine.messages import StatsReply, StepReport, TreeQuery, TreeReply
from tasuki.engine.request import Request
from tasuki.pycache._cpp_cache import PoolCounts, TreeStats
from tasuki.pycache.packed_tree import pack_tree
from tasuki.pycache.prefix_cache import HybridPrefixCache


def tree_reply(cache: HybridPrefixCache, query: TreeQuery) -> TreeReply:
    under = query.under
    if query.prefix is not None:
        under = cache.node_at(query.prefix, query.salt)
        if under is None:
            return TreeReply(query.query_id, None)
    view = cache.view(query.limit, under)
    return TreeReply(query.query_id, None if view is None else pack_tree(view))


_POOL = ("free", "working", "tree", "granted", "quarantined", "total", "pinned")
_TREE = (
    *("nodes", "ghost_nodes", "checkpoints", "leases", "cursors"),
    *("evicted_pages", "evicted_checkpoints"),
    *("leased_requests", "prompt_tokens", "usable_tokens"),
)


def _counts(holder: PoolCounts | TreeStats, names: Sequence[str]) -> dict[str, int]:
    return {name: getattr(holder, name) for name in names}


def stats_reply(
    query_id: int,
    cache: HybridPrefixCache,
    requests: Iterable[Request],
    integrity: str,
    steps: StepReport,
    early: dict[str, int],
) -> StatsReply:
    stats = cache.stats()
    return StatsReply(
        query_id=query_id,
        pages=_counts(stats.pages, _POOL),
        slots=_counts(stats.slots, _POOL),
        slabs={
            "free": stats.slabs_free,
            "pages": stats.slabs_of_pages,
            "slots": stats.slabs_of_slots,
            "total": stats.slabs_total,
        },
        tree=_counts(stats, _TREE),
        lost=stats.lost.as_dict(),
        requests=dict(Counter(request.state.phase for request in requests)),
        integrity=integrity,
        policy=cache.policy,
        policies=stats.policies,
        slab_pages=cache.arena.layout.pages_per_slab,
        steps=steps,
        early=early,
    )
