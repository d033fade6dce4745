"""Feed of the prefixes usable on this node, for the choice of a prefill node by decode nodes.

Owns a copy of the usable prefixes, by names alone, updated by the engine's events while a reader is
connected. Owns also each reader's unsent changes. Thread rule: the event loop's.

Invariants: a reader first gets all usable prefixes. A slow reader gets all of them again, so its
unsent changes are bounded. Several changes of one prefix between two batches are sent as its last
state.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from tasuki.proto import handover_pb2 as pb
from tasuki.pycache.packed import PackedEvents
from tasuki.transfer.protocol.messages import UsablePrefix, in_batches, prefixes_to_wire

READ_SECONDS = 0.25
"""Seconds between two reads of the engine's changes, and between two batches to a reader."""
_EMPTY_SECONDS = 1.0
"""Seconds without a change before an empty batch is sent."""
_MOST_WAITING = 1 << 16


class _Reader:
    """Reader of the feed of usable prefixes: one decode node, with its unsent changes."""

    def __init__(self, stands: dict[bytes, UsablePrefix]) -> None:
        self._stands = stands
        self._came: dict[bytes, UsablePrefix] = {}
        self._went: dict[bytes, UsablePrefix] = {}
        self._starts_over = True
        self._sequence = 0
        self.hurry = asyncio.Event()
        """Event set when the unsent changes are to be sent immediately."""
        self._sent_at = time.monotonic()

    def came(self, prefix: UsablePrefix) -> None:
        self._went.pop(prefix.name, None)
        self._came[prefix.name] = prefix
        self._bound()

    def went(self, prefix: UsablePrefix) -> None:
        self._came.pop(prefix.name, None)
        self._went[prefix.name] = prefix
        self._bound()

    def start_over(self) -> None:
        """Send all usable prefixes again with the next batch, in place of the unsent changes."""
        self._starts_over = True
        self._came, self._went = {}, {}

    def _bound(self) -> None:
        if self._starts_over or len(self._came) + len(self._went) > _MOST_WAITING:
            self.start_over()

    def take(self) -> Iterator[pb.UsableBatch]:
        """Yield the batches to send now; none if nothing changed, unless no batch was sent for
        _EMPTY_SECONDS."""
        came, went = self._came, self._went
        self._came, self._went = {}, {}
        if self._starts_over:
            self._starts_over = False
            came, went = dict(self._stands), {}
            yield self._batch(snapshot=True)
        for removed in in_batches([*went.values()]):
            yield self._batch(removed=removed)
        for stored in in_batches([*came.values()]):
            yield self._batch(stored=stored)
        if time.monotonic() - self._sent_at >= _EMPTY_SECONDS:
            yield self._batch()

    def _batch(
        self,
        snapshot: bool = False,
        removed: Sequence[UsablePrefix] = (),
        stored: Sequence[UsablePrefix] = (),
    ) -> pb.UsableBatch:
        self._sequence += 1
        self._sent_at = time.monotonic()
        return pb.UsableBatch(
            sequence=self._sequence,
            snapshot=snapshot,
            removed=prefixes_to_wire(removed) if removed else None,
            stored=prefixes_to_wire(stored) if stored else None,
        )


class UsableFeed:
    def __init__(self, read: Callable[[], None]) -> None:
        """read: asks the engine for the changes of its usable prefixes; take() is then called with
        its answer."""
        self._read = read
        self._asked = False
        self._known = False
        """True once the engine has answered with its usable prefixes."""
        self._stands: dict[bytes, UsablePrefix] = {}
        self._readers: set[_Reader] = set()

    def take(self, events: PackedEvents) -> None:
        unasked, self._asked = not self._asked, False
        self._known = True
        if events.is_snapshot:
            self._clear()
        for event in events:
            if event.prefix is None or event.parent is None:
                self._clear()
            elif event.kind == "checkpoint_stored":
                stored = UsablePrefix(event.prefix, event.parent, event.tokens)
                self._stands[stored.name] = stored
                for reader in self._readers:
                    reader.came(stored)
            elif event.kind == "checkpoint_moved":
                # The prefix is still found here, in another place.
                continue
            elif (removed := self._stands.pop(event.prefix, None)) is not None:
                for reader in self._readers:
                    reader.went(removed)
        if unasked:
            for reader in self._readers:
                reader.hurry.set()

    def _clear(self) -> None:
        self._stands.clear()
        for reader in self._readers:
            reader.start_over()

    async def batches(self, wanted: Callable[[], bool]) -> AsyncGenerator[pb.UsableBatch, None]:
        """Yield batches of changes for one reader, as long as wanted() returns True. Nothing is
        yielded before the engine's first read."""
        with self._reading() as reader:
            while wanted():
                if not self._asked:
                    self._asked = True
                    self._read()
                with suppress(TimeoutError):
                    async with asyncio.timeout(READ_SECONDS):
                        await reader.hurry.wait()
                reader.hurry.clear()
                if self._known:
                    for batch in reader.take():
                        yield batch

    @contextmanager
    def _reading(self) -> Iterator[_Reader]:
        reader = _Reader(self._stands)
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)
