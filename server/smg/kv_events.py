"""Changes of the usable blocks as KvEventBatch messages.

Pure but for the clock. A stream's sequence numbers go on from the last one that its subscriber saw,
so that its first snapshot is neither stale nor a gap, whichever process answered before. A block of
the subscriber's own namespace names no namespace, as its requests name none; any other block
carries its namespace's id as `cache_salt`, which a gateway folds into its own hashes.
"""

import time
from collections.abc import Iterator, Sequence

from smg_grpc_proto.generated import common_pb2 as pb

from tasuki.pycache._cpp_cache import PAGE_TOKENS

from .usable_blocks import Announced, Block, Change, Cleared, Withdrawn

_BLOCKS_A_MESSAGE = 4096


class GatewayEvents:
    def __init__(self, last_seen: int, own: bytes) -> None:
        """own: the subscriber's namespace, as CacheEvent.namespace."""
        self._own = own
        self._sequence = last_seen
        self._events = 0

    def batches(self, changes: Sequence[Change]) -> Iterator[pb.KvEventBatch]:
        """At least one, of bounded size each."""
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
    """A long chain in pieces, each hanging on the one before."""
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
    """The low half of a prefix's name, signed as the wire has it."""
    return int.from_bytes(prefix[:8], "little", signed=True)
