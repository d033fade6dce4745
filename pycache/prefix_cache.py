"""The prefix cache as the engine sees it: the tree decides which ids, the arena holds their bytes.

Thread rule: the engine loop alone calls it. Invariant: a working slot that leaves lease() is forked
from a checkpoint or zeroed, never neither; one that leaves lease_receive() is written by the
sender.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ._cpp_cache import (
    CheckpointKind,
    Eviction,
    HybridTree,
    Lease,
    Match,
    TreeConfig,
    TreeStats,
)
from .arena import Arena
from .copies import copy_page, copy_slot, zero_slot
from .packed_events import PackedEvents, pack_events
from .packed_tree import PackedTree, pack_tree

# Evicted prefixes are remembered by their tokens, a fraction of what their KV took.
_LEAST_GHOSTS = 4096
_GHOSTS_A_SLAB = 8

FreshIds = Callable[[Arena, Sequence[int], Sequence[int]], None]


def leave_as_is(arena: Arena, pages: Sequence[int], slots: Sequence[int]) -> None:
    """What production does with ids that change owner: nothing, since every byte read was
    written."""


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class HybridPrefixCache:
    """Owns the tree; borrows the arena. `on_fresh(arena, pages, slots)` sees every id that gets a
    new owner before anything is written to it: tests pass one that fills them with NaN. `policy`
    and `attention_cost` are the tree's (TreeConfig); `clock` tells it the time, ms."""

    def __init__(
        self,
        arena: Arena,
        on_fresh: FreshIds = leave_as_is,
        *,
        policy: str = "lru",
        attention_cost: float = 0.0,
        clock: Callable[[], int] = monotonic_ms,
        slabs: int | None = None,
    ) -> None:
        """slabs: of the arena, from the first; all by default."""
        layout = arena.layout
        slabs = arena.slabs if slabs is None else slabs
        self.arena = arena
        self._on_fresh = on_fresh
        self._clock = clock
        self._tree = HybridTree(
            TreeConfig(
                slabs=slabs,
                blocks_per_slab=layout.blocks_per_slab,
                pages_per_slab=layout.pages_per_slab,
                max_ghost_nodes=max(_LEAST_GHOSTS, _GHOSTS_A_SLAB * slabs),
                policy=policy,
                attention_cost=attention_cost,
            )
        )

    def _follow_moves(self) -> None:
        """The tree moved pages to empty a slab: their KV follows before the slab is written."""
        for source, destination in self._tree.drain_moves():
            copy_page(self.arena, source, destination)

    def match(
        self, tokens: NDArray[np.int32], salt: bytes = b"", cursor: int | None = None
    ) -> Match:
        return self._tree.match(tokens, salt, cursor)

    @property
    def room_version(self) -> int:
        """While it stands still, a lease that was refused would be refused again."""
        return self._tree.room_version

    def capacity_tokens(self, working_slots: int) -> int:
        return self._tree.capacity_tokens(working_slots)

    def lease(
        self,
        tokens: NDArray[np.int32],
        *,
        salt: bytes,
        capacity_tokens: int,
        working_slots: int,
        cursor: int | None,
    ) -> Lease | None:
        """Lease to compute: working_slots[0] holds the state after cached_tokens tokens on
        return."""
        self._tree.advance_to(self._clock())
        lease = self._tree.lease(
            tokens,
            salt=salt,
            capacity_tokens=capacity_tokens,
            working_slots=working_slots,
            cursor=cursor,
        )
        self._follow_moves()
        if lease is None:
            return None
        self._on_fresh(self.arena, lease.pages[lease.shared_pages :].tolist(), lease.working_slots)
        if lease.cow_source_slot is None:
            zero_slot(self.arena, lease.working_slots[0])
        else:
            copy_slot(self.arena, lease.cow_source_slot, lease.working_slots[0])
        if lease.tail_copy is not None:
            copy_page(self.arena, *lease.tail_copy)
        return lease

    def lease_receive(
        self,
        tokens: NDArray[np.int32],
        *,
        salt: bytes,
        capacity_tokens: int,
        working_slots: int,
        cursor: int | None,
    ) -> Lease | None:
        """Lease to be written by a sender; granted at once, so that its ids cannot be released by
        mistake."""
        lease = self._tree.lease_receive(
            tokens,
            salt=salt,
            capacity_tokens=capacity_tokens,
            working_slots=working_slots,
            cursor=cursor,
        )
        self._follow_moves()
        if lease is None:
            return None
        self._on_fresh(self.arena, lease.pages[lease.shared_pages :].tolist(), lease.working_slots)
        self._tree.grant(lease)
        return lease

    def lease_to_send(self, tokens: NDArray[np.int32], *, salt: bytes) -> Lease | None:
        """Lease to be read by a sender: what is usable of the prompt is pinned, nothing is
        taken."""
        return self._tree.lease_to_send(tokens, salt=salt)

    def extend(self, lease: Lease, capacity_tokens: int) -> bool:
        held = len(lease.pages)
        extended = self._tree.extend(lease, capacity_tokens)
        self._follow_moves()
        if not extended:
            return False
        self._on_fresh(self.arena, lease.pages[held:].tolist(), ())
        return True

    def append(self, lease: Lease, tokens: NDArray[np.int32]) -> None:
        self._tree.append(lease, tokens)

    def take_checkpoint_slot(self, lease: Lease) -> int | None:
        slot = self._tree.take_checkpoint_slot(lease)
        self._follow_moves()
        if slot is not None:
            self._on_fresh(self.arena, (), (slot,))
        return slot

    def publish(
        self,
        lease: Lease,
        boundary: int,
        slot: int | None,
        kind: CheckpointKind,
        hint: str = "unknown",
    ) -> None:
        self._tree.publish(lease, boundary, slot, kind, hint)

    def release(self, lease: Lease) -> None:
        self._tree.release(lease)

    def settle(self, lease: Lease) -> None:
        self._tree.settle(lease)

    def quarantine(self, lease: Lease) -> int:
        return self._tree.quarantine(lease)

    def free_quarantined(self, quarantine: int) -> None:
        self._tree.free_quarantined(quarantine)

    def open_cursor(self, salt: bytes) -> int:
        return self._tree.open_cursor(salt)

    def fork_cursor(self, cursor: int) -> int:
        return self._tree.fork_cursor(cursor)

    def close_cursor(self, cursor: int) -> None:
        self._tree.close_cursor(cursor)

    def watch(self, stream: str = "usable", capacity: int = 65536) -> int:
        """Events of the tree from now on; PrefixIndex follows them."""
        return self._tree.watch(stream, capacity)

    def drain_events(self, watch: int) -> PackedEvents:
        return pack_events(self._tree.drain_events(watch))

    def unwatch(self, watch: int) -> None:
        self._tree.unwatch(watch)

    def view(self, limit: int, under: tuple[int, int] | None = None) -> PackedTree | None:
        """What stands, in `limit` nodes; None where `under` is gone (HybridTree.view)."""
        view = self._tree.view(limit, under)
        return None if view is None else pack_tree(view)

    def node_at(self, tokens: NDArray[np.int32], salt: bytes) -> tuple[int, int] | None:
        return self._tree.node_at(tokens, salt)

    def flush(self) -> int:
        return self._tree.flush()

    def drain_evictions(self) -> list[Eviction]:
        """Those decided since the last call, oldest first."""
        return self._tree.drain_evictions()

    @property
    def policy(self) -> str:
        """The policy that is followed now."""
        return self._tree.policy

    def stats(self) -> TreeStats:
        return self._tree.stats()

    def check_integrity(self) -> None:
        self._tree.check_integrity()
