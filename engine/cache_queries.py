"""Answers to questions of API servers about an engine: its cache, counters and free capacity."""

from collections import Counter
from collections.abc import Sequence

from tasuki.engine.roles.base import Handover
from tasuki.engine.scheduling.pictures_elsewhere import Pictures
from tasuki.engine.scheduling.scheduler import Scheduler
from tasuki.engine.tiers.lower_tiers import LowerTiers
from tasuki.pycache._cpp_cache import IntegrityError, PoolCounts, TreeStats
from tasuki.pycache.packed import pack_events, pack_tree
from tasuki.pycache.prefix_cache import HybridPrefixCache

from . import messages as m
from .accounting import StepTimes, causes_of
from .intake import Intake

# Checking walks the tree, about 12 us a node. A frequent caller must not stop the loop for it.
_NODES_CHECKED_AT_ONCE = 256


_POOL = ("free", "working", "tree", "granted", "quarantined", "total", "pinned")
_TREE = (
    *("nodes", "ghost_nodes", "checkpoints", "cursors", "evicted_pages", "evicted_checkpoints"),
    *("prompt_tokens", "usable_tokens"),
)


def _counts(holder: PoolCounts | TreeStats, names: Sequence[str]) -> dict[str, int]:
    return {name: getattr(holder, name) for name in names}


class CacheQueries:
    """The handler of queries about the cache, its cursors and watches, and the engine's counters.

    Thread rule: the engine loop's. Each query is answered immediately, between two steps.
    """

    def __init__(
        self,
        cache: HybridPrefixCache,
        handover: Handover,
        scheduler: Scheduler,
        times: StepTimes,
        intake: Intake,
        emit: m.Emit,
        tiers: LowerTiers | None,
        weights: str,
        pictures: Pictures | None = None,
    ) -> None:
        """weights: format of the stored weights, reported in StatsReply. pictures: encoder of
        pictures; None: prompts have none."""
        self._pictures = pictures
        self._cache = cache
        self._handover = handover
        self._scheduler = scheduler
        self._times = times
        self._intake = intake
        self._emit = emit
        self._tiers = tiers
        layout = cache.arena.layout
        self._stored = {
            "weights": weights,
            "kv": layout.page_dtype,
            "states": layout.state_dtype,
            "draft_layers": str(layout.draft_layers),
        }
        self._integrity = "ok"

    def handle(self, message: m.CacheQuery) -> None:
        cache = self._cache
        match message:
            case m.OpenCursor(query_id, salt):
                self._emit(m.CursorOpened(query_id, cache.open_cursor(salt)))
            case m.ForkCursor(query_id, cursor):
                self._emit(m.CursorOpened(query_id, cache.fork_cursor(cursor)))
            case m.CloseCursor(cursor):
                cache.close_cursor(cursor)
            case m.StatsQuery(query_id):
                self._check_integrity()
                self._report_counters(query_id)
            case m.CountersQuery(query_id):
                if cache.stats().nodes <= _NODES_CHECKED_AT_ONCE:
                    self._check_integrity()
                self._report_counters(query_id)
            case m.LoadQuery(query_id):
                self._emit(self._load(query_id))
            case m.FlushCache(query_id):
                dropped = cache.flush()
                if self._tiers is not None:
                    self._tiers.empty()
                self._emit(m.FlushReply(query_id, dropped))
            case m.WatchCache(query_id, stream):
                self._emit(m.WatchOpened(query_id, cache.watch(stream)))
            case m.ReadEvents(query_id, watch):
                self._emit(m.EventsReply(query_id, pack_events(cache.drain_events(watch))))
            case m.EndWatch(watch):
                cache.unwatch(watch)
            case m.TreeQuery():
                self._emit(self._tree(message))

    def _load(self, query_id: int) -> m.LoadReply:
        """Return the engine's capacity for one more answer, used by a client to place sessions."""
        pages = self._cache.stats().pages
        held = pages.working + pages.granted + pages.quarantined + pages.pinned
        running, line = self._scheduler.running, self._times.answering.line()
        answers = len(running) - len(running.prompts)
        return m.LoadReply(
            query_id,
            step_seconds=None if line is None else line.seconds(answers + 1),
            in_flight=len(self._handover.requests),
            places=self._scheduler.max_batch,
            free_kv=1.0 - held / pages.total,
            draining=self._intake.draining,
        )

    def _check_integrity(self) -> None:
        self._integrity = "ok"
        try:
            self._cache.check_integrity()
        except IntegrityError as error:
            self._integrity = str(error)

    def _tree(self, query: m.TreeQuery) -> m.TreeReply:
        under = query.under
        if query.prefix is not None:
            under = self._cache.node_at(query.prefix, query.salt)
            if under is None:
                return m.TreeReply(query.query_id, None)
        view = self._cache.view(query.limit, under)
        return m.TreeReply(query.query_id, None if view is None else pack_tree(view))

    def _report_counters(self, query_id: int) -> None:
        stats, requests = self._cache.stats(), self._handover.requests
        layout = self._cache.arena.layout
        self._emit(
            m.StatsReply(
                query_id=query_id,
                pages=_counts(stats.pages, _POOL),
                slots=_counts(stats.slots, _POOL),
                slabs={
                    "free": stats.slabs_free,
                    "pages": stats.slabs_of_pages,
                    "slots": stats.slabs_of_slots,
                    "total": stats.slabs_total,
                },
                tree={
                    **_counts(stats, _TREE),
                    "leases": stats.allocations,
                    "leased_requests": stats.allocated_requests,
                },
                lost=causes_of(stats.lost),
                requests=dict(Counter(request.state.phase for request in requests)),
                integrity=self._integrity,
                policy=self._cache.policy,
                policies=stats.policies,
                slab_pages=layout.pages_per_slab,
                slab_bytes=layout.slab_bytes,
                each_bytes={"page": layout.page_bytes, "slot": layout.slot_bytes},
                part_bytes=layout.part_bytes,
                stored=self._stored,
                steps=self._times.report(),
                early=self._handover.early_counters,
                tiers=() if self._tiers is None else self._tiers.report(),
                looked_up_tokens=self._handover.lookups.prompt_tokens,
                usable_tokens=self._handover.lookups.usable_tokens,
                retractions=self._scheduler.retractions,
                pictures=None if self._pictures is None else self._pictures.stats(requests),
            )
        )
