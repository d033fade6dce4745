"""Reads of a tree's events that wait until there are some.

A subscriber of an engine asks it every 50 ms, which a thousand nodes on two cores cannot be; here
a read that finds nothing is answered that long after the next change. Owns the reads that wait, one
a watch. Thread rule: one event loop's.
"""

import asyncio
from collections.abc import Callable

from tasuki.engine import messages as m
from tasuki.pycache._cpp_cache import PrefixCache
from tasuki.pycache.packed import pack_events

POLL_SECONDS = 0.05
EventsOutbox = m.WatchOpened | m.EventsReply


class EventReads:
    def __init__(self, tree: PrefixCache, emit: Callable[[EventsOutbox], None]) -> None:
        self._tree = tree
        self._emit = emit
        self._reads: dict[int, m.ReadEvents] = {}
        self._timer: asyncio.TimerHandle | None = None

    def handle(self, message: m.WatchCache | m.ReadEvents | m.EndWatch) -> None:
        match message:
            case m.WatchCache(query_id, stream):
                self._emit(m.WatchOpened(query_id, self._tree.watch(stream)))
            case m.ReadEvents():
                self._answer(message)
            case m.EndWatch(watch):
                self._reads.pop(watch, None)
                self._tree.unwatch(watch)

    def changed(self) -> None:
        """The tree may have something to say."""
        if self._reads and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(POLL_SECONDS, self._answer_all)

    def _answer_all(self) -> None:
        self._timer = None
        reads, self._reads = self._reads, {}
        for read in reads.values():
            self._answer(read)

    def _answer(self, read: m.ReadEvents) -> None:
        batch = pack_events(self._tree.drain_events(read.watch))
        if len(batch) or batch.is_snapshot:
            self._emit(m.EventsReply(read.query_id, batch))
        else:
            self._reads[read.watch] = read
