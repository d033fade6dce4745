"""The events of one node's cache, as sent to clients, and an index of its prefixes.

An event carries neither the reason for keeping a state nor a page's tokens. A namespace is the name
of the empty prefix under the same salt. Nodes without namespaces give None.

PrefixIndex owns hashes, never tokens. It is independent of the tree, of other caches, and of the
transport of batches. It may live in another process. Thread rule: one thread at a time. Invariant:
after every batch the index holds exactly the prefixes kept by its stream.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasuki.engine.messages.proto import EVENT, GAP
from tasuki.proto import inference_pb2 as pb
from tasuki.pycache import _cpp_cache
from tasuki.pycache._cpp_cache import PAGE_TOKENS, prefix_hashes
from tasuki.pycache.packed import CacheEvent, EventGap

from .channel import Wire


@dataclass(frozen=True)
class EventBatch:
    """A batch of cache events: the changes up to number `sequence`, or a snapshot in place of all
    earlier batches. gap: the events lost before it, if any."""

    sequence: int
    is_snapshot: bool
    gap: EventGap | None
    events: tuple[CacheEvent, ...]

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[CacheEvent]:
        return iter(self.events)


class CacheWatch:
    """A reader of a node's cache events, one WatchEvents call. `cancel` ends the call."""

    def __init__(self, wire: Wire, stream: str) -> None:
        """Begin the WatchEvents call. stream: usable (prefixes with a checkpoint) or all (pages
        too). Raises ClientError, and ValueError."""
        wanted = pb.WatchEventsRequest.Stream.Value(f"STREAM_{stream.upper()}")
        request = pb.WatchEventsRequest(stream=wanted)
        self._call = wire.stream(wire.stubs().admin.WatchEvents, request)
        self._events: list[CacheEvent] = []
        self._gap: EventGap | None = None

    async def next_batch(self) -> EventBatch | None:
        """Return the next batch of events, or None at the end of the call. Raises ClientError."""
        while (part := await self._call.read()) is not None:
            if (batch := self._take(part)) is not None:
                return batch
        return None

    def cancel(self) -> None:
        """End the WatchEvents call."""
        self._call.cancel()

    def _take(self, part: pb.WatchEventsResponse) -> EventBatch | None:
        """Add one message of a batch. Return the batch after its last message, otherwise None."""
        if part.HasField("gap"):
            self._gap = GAP.from_wire(part.gap)
        self._events += (
            EVENT.from_wire(event, checkpoint_kind=None, page=()) for event in part.events
        )
        if part.more:
            return None
        batch = EventBatch(part.sequence, part.snapshot, self._gap, tuple(self._events))
        self._events, self._gap = [], None
        return batch


Event = CacheEvent | _cpp_cache.CacheEvent
"""A cache event received by a client, or given by the cache's own tree."""
Batch = EventBatch | _cpp_cache.EventBatch


class MissedEvents(ValueError):
    """A batch does not follow the batch before it: watch again, or wait for the next snapshot."""


class PrefixIndex:
    """An index of the prefixes in a cache. It applies the batches of one watch, in order."""

    def __init__(self) -> None:
        self._sequence: int | None = None
        self.pages: set[bytes] = set()
        self.checkpoints: dict[bytes, int] = {}  # tokens by prefix
        # The nearest place of each: 0 in the arena, then the tiers below; a tier's entry must be
        # loaded first.
        self.places: dict[bytes, int] = {}
        # Checkpoints inside a page: tokens by prefix, by the whole pages before it.
        self._tails: dict[bytes, dict[bytes, int]] = {}

    def apply(self, batch: Batch) -> None:
        """Apply the batch to the index. If a batch was lost on the way, raises MissedEvents and
        changes nothing."""
        if batch.is_snapshot:
            self._clear()
        elif self._sequence is None or batch.sequence - len(batch) != self._sequence:
            raise MissedEvents(
                f"a batch of {len(batch)} events up to {batch.sequence} came after event "
                f"{self._sequence}: drain a snapshot first"
            )
        for event in batch:
            self._apply(event)
        self._sequence = batch.sequence

    def usable_tokens(self, tokens: NDArray[np.int32], salt: bytes = b"") -> int:
        """Return the length in tokens of the longest prefix of `tokens` with a checkpoint, like a
        match in the cache. At least one token is left to compute. tokens: one-dimensional int32."""
        last = len(tokens) - 1
        whole = last // PAGE_TOKENS * PAGE_TOKENS
        hashes = prefix_hashes(tokens[:whole], salt)
        for page in range(len(hashes) - 1, -1, -1):
            tails = self._tails.get(hashes[page], {})
            for end in sorted({end for end in tails.values() if end <= last}, reverse=True):
                if prefix_hashes(tokens[:end], salt)[-1] in tails:
                    return end
            if hashes[page] in self.checkpoints:
                return page * PAGE_TOKENS
        return 0

    def _apply(self, event: Event) -> None:
        prefix, parent = event.prefix, event.parent
        if prefix is None or parent is None:
            self._clear()
        elif event.kind == "page_stored":
            self.pages.add(prefix)
        elif event.kind == "page_removed":
            self.pages.remove(prefix)
        elif event.kind == "checkpoint_stored":
            self.checkpoints[prefix] = event.tokens
            self.places[prefix] = event.place
            if event.tokens % PAGE_TOKENS:
                self._tails.setdefault(parent, {})[prefix] = event.tokens
        elif event.kind == "checkpoint_moved":
            self.places[prefix] = event.place
        else:
            del self.checkpoints[prefix], self.places[prefix]
            if event.tokens % PAGE_TOKENS:
                del self._tails[parent][prefix]
                if not self._tails[parent]:
                    del self._tails[parent]

    def _clear(self) -> None:
        self.pages.clear()
        self.checkpoints.clear()
        self.places.clear()
        self._tails.clear()
