"""Questions about the cache, its cursors and its watches, and the counters of the engine.

Thread rule: the engine loop's. Each is answered at once, between two steps.
"""

from collections.abc import Callable

from tasuki.engine.accounting.stats import stats_reply, tree_reply
from tasuki.engine.accounting.step_timing import StepTimes
from tasuki.engine.handover.base import Handover
from tasuki.pycache._cpp_cache import IntegrityError
from tasuki.pycache.packed_events import pack_events
from tasuki.pycache.prefix_cache import HybridPrefixCache

from . import messages as m

# Checking walks the tree, about 12 us a node: who asks often must not stop the loop for it.
_NODES_CHECKED_AT_ONCE = 256


class CacheQueries:
    def __init__(
        self,
        cache: HybridPrefixCache,
        handover: Handover,
        times: StepTimes,
        emit: Callable[[m.Outbox], None],
    ) -> None:
        self._cache = cache
        self._handover = handover
        self._times = times
        self._emit = emit
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
            case m.FlushCache(query_id):
                self._emit(m.FlushReply(query_id, cache.flush()))
            case m.WatchCache(query_id, stream):
                self._emit(m.WatchOpened(query_id, cache.watch(stream)))
            case m.ReadEvents(query_id, watch):
                self._emit(m.EventsReply(query_id, pack_events(cache.drain_events(watch))))
            case m.EndWatch(watch):
                cache.unwatch(watch)
            case m.TreeQuery():
                self._emit(tree_reply(cache, message))

    def _check_integrity(self) -> None:
        self._integrity = "ok"
        try:
            self._cache.check_integrity()
        except IntegrityError as error:
            self._integrity = str(error)

    def _report_counters(self, query_id: int) -> None:
        requests, early = self._handover.requests, self._handover.early_counters
        steps = self._times.report()
        self._emit(stats_reply(query_id, self._cache, requests, self._integrity, steps, early))
