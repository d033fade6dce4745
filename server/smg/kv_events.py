"""Cache events for a gateway's router: the cached blocks usable as hits, as KvEventBatch messages.

UsableBlocks: the cached pages on paths to a checkpoint. A hybrid model cannot use a page after the
last checkpoint of its path. A router counting such pages would route to nonexistent hits. Owns the
cached pages with their tokens, because gateways compute hashes of their own. One watch, one thread.
Invariants: a page is announced exactly while a checkpoint exists at its end or below. Parents are
announced before their children and withdrawn after them. Only blocks of the wanted namespace are
announced, and two namespaces never share a block. No page with a picture's keys is announced, and
no page behind it.

GatewayEvents: encoder of changes of the usable blocks as KvEventBatch messages. Pure except for the
clock. A stream's sequence numbers continue from the subscriber's last one. The subscriber therefore
takes the first snapshot as neither stale nor a gap, even if it was connected to another process
before. A block of the subscriber's own namespace carries no namespace, like its requests. Any other
block carries its namespace's id as `cache_salt`, and a gateway includes the id in its own hashes.
"""

import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from smg_grpc_proto.generated import common_pb2 as pb

from tasuki.pycache._cpp_cache import PAGE_TOKENS, prefix_hashes
from tasuki.pycache.keys import Keys
from tasuki.pycache.packed import CacheEvent, PackedEvents


@dataclass(frozen=True)
class Block:
    """A cached page of KV. prefix: hash of all tokens up to the page's end. parent: the same hash
    for the page before. tokens: the page's token ids. They are an array, with a seventh of a
    tuple's memory: a node with 64 GB has 50,000 pages, and each gateway connection needs a copy."""

    prefix: bytes
    parent: bytes
    tokens: "array[int]"


@dataclass(frozen=True)
class Announced:
    """A chain of newly usable blocks. parent: hash of the prefix before the first block; None at
    the beginning of a prompt. blocks: each is the child of the previous one. namespace: value of
    CacheEvent.namespace."""

    parent: bytes | None
    blocks: tuple[Block, ...]
    namespace: bytes


@dataclass(frozen=True)
class Withdrawn:
    """Blocks no longer usable. prefixes: their prefix hashes, children before their parents."""

    prefixes: tuple[bytes, ...]


@dataclass(frozen=True)
class Cleared:
    """A change: all blocks become unusable."""


Change = Announced | Withdrawn | Cleared


def namespace_of(salt: bytes) -> bytes:
    """Return the namespace of a cache salt: the hash of the empty prefix with this salt, as in
    CacheEvent.namespace."""
    return prefix_hashes(Keys(np.empty(0, dtype=np.int32)), salt)[0]


class UsableBlocks:
    def __init__(self, namespace: bytes | None) -> None:
        """namespace: the CacheEvent.namespace to announce blocks of; None: all namespaces."""
        self._namespace = namespace
        self._pages: dict[bytes, Block] = {}
        # By page: the checkpoints at its end or inside the next page, and the children with a
        # checkpoint below.
        self._worth: dict[bytes, int] = {}

    def apply(self, batch: PackedEvents) -> list[Change]:
        """Apply a batch of cache events. Return the changes of the usable blocks. Batches come in
        order from a watch of the stream `spelled` (events with the pages' tokens), a snapshot
        first."""
        changes: list[Change] = []
        if batch.is_snapshot:
            self._clear()
            changes.append(Cleared())
        for event in batch:
            changes += self._changes(event)
        return changes

    def _changes(self, event: CacheEvent) -> Iterable[Change]:
        prefix, parent = event.prefix, event.parent
        if prefix is None or parent is None:
            self._clear()
            return [Cleared()]
        root = event.namespace
        if root is None or self._namespace not in (None, root):
            return ()
        if event.kind == "page_stored":
            known = parent == root or parent in self._pages
            # A gateway's token ids are unsigned: it sees no page of a picture and none behind it.
            if known and min(event.page, default=0) >= 0:
                self._pages[prefix] = Block(prefix, parent, array("i", event.page))
        elif event.kind == "page_removed":
            self._pages.pop(prefix, None)
        else:
            place = parent if event.tokens % PAGE_TOKENS else prefix
            if place in self._pages:
                stored = event.kind == "checkpoint_stored"
                return self._announce(place, root) if stored else self._withdraw(place, root)
        return ()

    def _announce(self, place: bytes, root: bytes) -> Iterable[Change]:
        chain: list[Block] = []
        while place != root:
            worth = self._worth.get(place, 0)
            self._worth[place] = worth + 1
            if worth:
                break
            chain.append(self._pages[place])
            place = chain[-1].parent
        if chain:
            parent = None if place == root else place
            yield Announced(parent, tuple(reversed(chain)), root)

    def _withdraw(self, place: bytes, root: bytes) -> Iterable[Change]:
        gone: list[bytes] = []
        while place != root:
            self._worth[place] -= 1
            if self._worth[place]:
                break
            del self._worth[place]
            gone.append(place)
            place = self._pages[place].parent
        if gone:
            yield Withdrawn(tuple(gone))

    def _clear(self) -> None:
        self._pages.clear()
        self._worth.clear()


_BLOCKS_A_MESSAGE = 4096


class GatewayEvents:
    def __init__(self, last_seen: int, own: bytes) -> None:
        """last_seen: the subscriber's last sequence number. own: the subscriber's namespace, as
        CacheEvent.namespace."""
        self._own = own
        self._sequence = last_seen
        self._events = 0

    def batches(self, changes: Sequence[Change]) -> Iterator[pb.KvEventBatch]:
        """Yield the changes as messages of bounded size. Yield an empty message if there are no
        changes."""
        events: list[pb.KvCacheEvent] = []
        blocks = 0
        for change in changes:
            for part in _parts(change):
                self._events += 1
                events.append(self._event(part))
                blocks += len(part.blocks) if isinstance(part, Announced) else 1
                if blocks >= _BLOCKS_A_MESSAGE:
                    yield self._batch(events)
                    events, blocks = [], 0
        if events or not changes:
            yield self._batch(events)

    def _event(self, change: Change) -> pb.KvCacheEvent:
        event_id = self._events
        match change:
            case Announced(parent, blocks, namespace):
                stored = pb.KvBlocksStored(
                    blocks=map(_block, blocks),
                    parent_block_hash=None if parent is None else block_hash(parent),
                    cache_salt=None if namespace == self._own else namespace.hex(),
                )
                return pb.KvCacheEvent(event_id=event_id, stored=stored)
            case Withdrawn(prefixes):
                removed = pb.KvBlocksRemoved(block_hashes=map(block_hash, prefixes))
                return pb.KvCacheEvent(event_id=event_id, removed=removed)
            case Cleared():
                return pb.KvCacheEvent(event_id=event_id, cleared=pb.KvCacheCleared())

    def _batch(self, events: list[pb.KvCacheEvent]) -> pb.KvEventBatch:
        self._sequence += 1
        return pb.KvEventBatch(sequence_number=self._sequence, timestamp=time.time(), events=events)


def _parts(change: Change) -> Iterator[Change]:
    """Yield a change in parts of bounded size. A long chain of blocks is split, and each part
    continues the one before."""
    if not isinstance(change, Announced):
        yield change
        return
    parent = change.parent
    for start in range(0, len(change.blocks), _BLOCKS_A_MESSAGE):
        blocks = change.blocks[start : start + _BLOCKS_A_MESSAGE]
        yield Announced(parent, blocks, change.namespace)
        parent = blocks[-1].prefix


def _block(block: Block) -> pb.KvBlock:
    return pb.KvBlock(
        block_hash=block_hash(block.prefix), token_ids=block.tokens, block_size=PAGE_TOKENS
    )


def block_hash(prefix: bytes) -> int:
    """Return the hash of a block as on the wire: the first 8 bytes of its prefix hash, as a
    little-endian signed integer."""
    return int.from_bytes(prefix[:8], "little", signed=True)
