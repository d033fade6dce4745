"""The prefix cache as the engine sees it: the tree chooses the ids, the arena holds their bytes.

Thread rule: only the engine loop calls the cache. The cache moves no byte. It queues copies in a
list, in the order of their decisions, until take_copies() returns them.

Invariants:

1. A working slot returned by allocate() will be forked from a checkpoint or zeroed. The sender
   writes the slot returned by allocate_to_receive(). If an allocation loads from a tier, the
   copier writes its slot.
2. A method may return ids and also queue copies. A forward or another node may use the ids only
   after these copies. So the caller takes and runs them before it launches the next forward. It
   also runs them before it records the GPU event for other nodes, after which these may read or
   write the ids (engine/forward_stream.py). Copies for an allocation released meanwhile still run:
   in the list they come before the next use of its ids.
"""

import time
from collections.abc import Callable, Sequence

from ._cpp_cache import Allocation, CheckpointKind, PrefixCache, TierConfig, TierWrite, TreeConfig
from .arena import Arena, CopyKind, CopyOp
from .keys import Keys

# Evicted prefixes are remembered by their tokens, a fraction of what their KV took.
_LEAST_GHOSTS = 4096
_GHOSTS_A_SLAB = 8


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class HybridPrefixCache(PrefixCache):
    """The prefix tree and the copies queued for it; names the arena. The methods here return page
    and slot ids; all others are the tree's own. policy, attention_cost: eviction policy and cost of
    attention, see TreeConfig. clock: returns the time in ms."""

    def __init__(
        self,
        arena: Arena,
        *,
        policy: str = "lru",
        attention_cost: float = 0.0,
        clock: Callable[[], int] = monotonic_ms,
        slabs: int | None = None,
        tiers: Sequence[TierConfig] = (),
    ) -> None:
        """slabs: number of slabs to use, from the arena's first; by default all of the arena.
        tiers: memories below the arena, the nearest first."""
        layout = arena.layout
        slabs = arena.slabs if slabs is None else slabs
        super().__init__(
            TreeConfig(
                slabs=slabs,
                blocks_per_slab=layout.blocks_per_slab,
                pages_per_slab=layout.pages_per_slab,
                max_ghost_nodes=max(_LEAST_GHOSTS, _GHOSTS_A_SLAB * slabs),
                policy=policy,
                attention_cost=attention_cost,
                tiers=list(tiers),
            )
        )
        self.arena = arena
        self._clock = clock
        self._copies: list[CopyOp] = []

    def take_copies(self) -> tuple[CopyOp, ...]:
        """Return the copies queued since the last call, in order. The caller must run them before
        the next forward (see invariant 2)."""
        taken = tuple(self._copies)
        self._copies.clear()
        return taken

    def _follow_moves(self) -> None:
        """Queue a page copy for each move of a page in the tree. The tree moves pages to empty a
        slab. Their KV must be copied before the slab is written."""
        for source, destination in self.drain_moves():
            self._copies.append(CopyOp(CopyKind.PAGE, source, destination))

    def allocate(
        self,
        tokens: Keys,
        *,
        salt: bytes = b"",
        capacity_tokens: int,
        working_slots: int,
        cursor: int | None = None,
    ) -> Allocation | None:
        """Return an allocation for a prompt to compute; None if it fits only after others are
        released. After the queued copies, working_slots[0] holds the state after cached_tokens
        tokens."""
        self.advance_to(self._clock())
        allocation = super().allocate(
            tokens,
            salt=salt,
            capacity_tokens=capacity_tokens,
            working_slots=working_slots,
            cursor=cursor,
        )
        self._follow_moves()
        if allocation is not None:
            self._fork(allocation)
        return allocation

    def allocate_or_load(
        self,
        tokens: Keys,
        *,
        salt: bytes = b"",
        capacity_tokens: int,
        working_slots: int,
        cursor: int | None = None,
        load_wait: float = 0.0,
    ) -> Allocation | None:
        """Return an allocation to fill with cached tokens from a lower tier. If no tier is of use,
        return the same as allocate(). load_wait: tokens of prefill until such a copy begins."""
        self.advance_to(self._clock())
        allocation = super().allocate_or_load(
            tokens,
            salt=salt,
            capacity_tokens=capacity_tokens,
            working_slots=working_slots,
            cursor=cursor,
            load_wait=load_wait,
        )
        self._follow_moves()
        if allocation is not None and allocation.load is None:
            self._fork(allocation)
        return allocation

    def next_write(self) -> TierWrite | None:
        """Begin the next write of cached data to a lower tier, and return it. Return None if no
        write is waiting, or if the tier lacks space or write budget for now."""
        self.advance_to(self._clock())
        return super().next_write()

    def _fork(self, allocation: Allocation) -> None:
        """Queue the copies for the allocation's first state: its checkpoint, or zeros."""
        first = allocation.working_slots[0]
        if allocation.cow_source_slot is None:
            self._copies.append(CopyOp(CopyKind.ZERO_SLOT, first, first))
        else:
            self._copies.append(CopyOp(CopyKind.SLOT, allocation.cow_source_slot, first))
        if allocation.tail_copy is not None:
            self._copies.append(CopyOp(CopyKind.PAGE, *allocation.tail_copy))

    def allocate_to_receive(
        self,
        tokens: Keys,
        *,
        salt: bytes = b"",
        capacity_tokens: int,
        working_slots: int,
        cursor: int | None = None,
    ) -> Allocation | None:
        """Return an allocation for another node to write; None as for allocate(). It counts as
        granted immediately, so that its ids cannot be released by mistake."""
        allocation = super().allocate_to_receive(
            tokens,
            salt=salt,
            capacity_tokens=capacity_tokens,
            working_slots=working_slots,
            cursor=cursor,
        )
        self._follow_moves()
        if allocation is not None:
            self.grant(allocation)
        return allocation

    def extend(self, allocation: Allocation, capacity_tokens: int) -> bool:
        extended = super().extend(allocation, capacity_tokens)
        self._follow_moves()
        return extended

    def insert_midway(
        self, allocation: Allocation, boundary: int, slot: int, kind: CheckpointKind
    ) -> tuple[int, int] | None:
        """Insert a checkpoint at `boundary` tokens, in the middle of an allocation. If it needs a
        page copy, the copy is queued for take_copies(). Return this copy's two pages, or None.
        REQUIRES: the KV before the boundary is written."""
        copy = super().insert_midway(allocation, boundary, slot, kind)
        self._follow_moves()
        if copy is not None:
            self._copies.append(CopyOp(CopyKind.PAGE, *copy))
        return copy

    def take_checkpoint_slot(self, allocation: Allocation) -> int | None:
        slot = super().take_checkpoint_slot(allocation)
        self._follow_moves()
        return slot
