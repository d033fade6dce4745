"""The prefix cache as the engine sees it: the tree decides which ids, the arena holds their bytes.

Thread rule: the engine loop alone calls it. It moves no byte: what must be copied waits in a list,
in the order in which it was decided, until take_copies().
Invariants:
1. A working slot that leaves allocate() is to be forked from a checkpoint or zeroed, never neither;
   one that leaves allocate_to_receive() is written by the sender.
2. Whoever reads or writes ids that a call here returned, a forward or another node, does so after
   the copies that waited when that call returned. So they are taken and run before the next forward
   is launched, and before the event is recorded behind which another node may write or read
   (engine/plan_stream.py). Copies for an allocation that is released meanwhile still run: in the
   list's order they come before whatever its ids are used for next.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ._cpp_cache import (
    Allocation,
    CheckpointKind,
    Eviction,
    Match,
    PrefixCache,
    TreeConfig,
    TreeStats,
)
from .arena import Arena
from .copies import CopyKind, CopyOp
from .packed_events import PackedEvents, pack_events
from .packed_tree import PackedTree, pack_tree

# Evicted prefixes are remembered by their tokens, a fraction of what their KV took.
_LEAST_GHOSTS = 4096
_GHOSTS_A_SLAB = 8
_NO_PAGES = np.empty(0, dtype=np.int32)

FreshIds = Callable[[Arena, Sequence[int], Sequence[int]], None]


def leave_as_is(arena: Arena, pages: Sequence[int], slots: Sequence[int]) -> None:
    """What production does with ids that change owner: nothing, since every byte read was
    written."""


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class HybridPrefixCache:
    """Owns the tree and the copies that wait; names the arena. `on_fresh(arena, pages, slots)` sees
    the ids that get a new owner before anything is written to them, but for those that a waiting
    copy still reads: tests pass one that fills them with NaN. `policy` and `attention_cost` are the
    tree's (TreeConfig); `clock` gives it the time, ms."""

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
        self._copies: list[CopyOp] = []
        self._tree = PrefixCache(
            TreeConfig(
                slabs=slabs,
                blocks_per_slab=layout.blocks_per_slab,
                pages_per_slab=layout.pages_per_slab,
                max_ghost_nodes=max(_LEAST_GHOSTS, _GHOSTS_A_SLAB * slabs),
                policy=policy,
                attention_cost=attention_cost,
            )
        )

    def take_copies(self) -> tuple[CopyOp, ...]:
        """What was decided since the last call; the caller runs it, see invariant 2."""
        taken = tuple(self._copies)
        self._copies.clear()
        return taken

    def _follow_moves(self) -> None:
        """The tree moved pages to empty a slab: their KV follows before the slab is written."""
        for source, destination in self._tree.drain_moves():
            self._copies.append(CopyOp(CopyKind.PAGE, source, destination))

    def _hand_out(self, pages: NDArray[np.int32], slots: Sequence[int]) -> None:
        """on_fresh acts at once, a waiting copy later: the slabs' bytes that it reads must stay."""
        blocks = self.arena.layout.blocks_per_slab
        moved = {copy.source for copy in self._copies if copy.kind is CopyKind.PAGE}
        forked = {copy.source for copy in self._copies if copy.kind is CopyKind.SLOT}
        read = forked | {page // blocks for page in moved}
        self._on_fresh(
            self.arena,
            [page for page in pages.tolist() if page not in moved and page // blocks not in forked],
            [slot for slot in slots if slot not in read],
        )

    def match(
        self, tokens: NDArray[np.int32], salt: bytes = b"", cursor: int | None = None
    ) -> Match:
        return self._tree.match(tokens, salt, cursor)

    @property
    def room_version(self) -> int:
        """While it stands still, an allocation that was refused would be refused again."""
        return self._tree.room_version

    def capacity_tokens(self, working_slots: int) -> int:
        return self._tree.capacity_tokens(working_slots)

    def allocate(
        self,
        tokens: NDArray[np.int32],
        *,
        salt: bytes,
        capacity_tokens: int,
        working_slots: int,
        cursor: int | None,
    ) -> Allocation | None:
        """Allocation to compute: working_slots[0] holds the state after cached_tokens tokens once
        the copies that wait on return have run."""
        self._tree.advance_to(self._clock())
        allocation = self._tree.allocate(
            tokens,
            salt=salt,
            capacity_tokens=capacity_tokens,
            working_slots=working_slots,
            cursor=cursor,
        )
        self._follow_moves()
        if allocation is None:
            return None
        self._hand_out(allocation.pages[allocation.shared_pages :], allocation.working_slots)
        first = allocation.working_slots[0]
        if allocation.cow_source_slot is None:
            self._copies.append(CopyOp(CopyKind.ZERO_SLOT, first, first))
        else:
            self._copies.append(CopyOp(CopyKind.SLOT, allocation.cow_source_slot, first))
        if allocation.tail_copy is not None:
            self._copies.append(CopyOp(CopyKind.PAGE, *allocation.tail_copy))
        return allocation

    def allocate_to_receive(
        self,
        tokens: NDArray[np.int32],
        *,
        salt: bytes,
        capacity_tokens: int,
        working_slots: int,
        cursor: int | None,
    ) -> Allocation | None:
        """Allocation to be written by a sender; granted at once, so that its ids cannot be released
        by mistake."""
        allocation = self._tree.allocate_to_receive(
            tokens,
            salt=salt,
            capacity_tokens=capacity_tokens,
            working_slots=working_slots,
            cursor=cursor,
        )
        self._follow_moves()
        if allocation is None:
            return None
        self._hand_out(allocation.pages[allocation.shared_pages :], allocation.working_slots)
        self._tree.grant(allocation)
        return allocation

    def allocate_to_send(self, tokens: NDArray[np.int32], *, salt: bytes) -> Allocation | None:
        """Allocation to be read by a sender: what is usable of the prompt is pinned, nothing is
        taken."""
        return self._tree.allocate_to_send(tokens, salt=salt)

    def extend(self, allocation: Allocation, capacity_tokens: int) -> bool:
        held = len(allocation.pages)
        extended = self._tree.extend(allocation, capacity_tokens)
        self._follow_moves()
        if not extended:
            return False
        self._hand_out(allocation.pages[held:], ())
        return True

    def append(self, allocation: Allocation, tokens: NDArray[np.int32]) -> None:
        self._tree.append(allocation, tokens)

    def take_checkpoint_slot(self, allocation: Allocation) -> int | None:
        slot = self._tree.take_checkpoint_slot(allocation)
        self._follow_moves()
        if slot is not None:
            self._hand_out(_NO_PAGES, (slot,))
        return slot

    def insert(
        self,
        allocation: Allocation,
        boundary: int,
        slot: int | None,
        kind: CheckpointKind,
        hint: str = "unknown",
    ) -> None:
        self._tree.insert(allocation, boundary, slot, kind, hint)

    def release(self, allocation: Allocation) -> None:
        self._tree.release(allocation)

    def accept_received(self, allocation: Allocation) -> None:
        self._tree.accept_received(allocation)

    def quarantine(self, allocation: Allocation) -> int:
        return self._tree.quarantine(allocation)

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
        """What stands, in `limit` nodes; None where `under` is gone (PrefixCache.view)."""
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
