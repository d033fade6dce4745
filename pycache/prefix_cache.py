"""The prefix cache as the engine sees it: the tree chooses the ids, the arena holds their bytes.

Thread rule: only the engine loop calls it. It moves no byte. Copies wait in a list, in the order of
their decisions, until take_copies().

Invariants:

1. A working slot returned by allocate() will be forked from a checkpoint or zeroed. The sender
   writes the slot returned by allocate_to_receive(). The copier writes the slot of an allocation
   with a load.
2. A forward or another node may use ids returned here only after the copies waiting at that return.
   So these copies are taken and run before the next forward is launched. They also run before the
   event behind which another node may write or read is recorded (engine/forward_stream.py). Copies
   for an allocation released meanwhile still run. In the list's order they come before the next use
   of its ids.
"""

import time
from collections.abc import Callable, Sequence

from ._cpp_cache import (
    Allocation,
    CheckpointKind,
    PrefixCache,
    TierConfig,
    TierWrite,
    TreeConfig,
)
from .arena import Arena, CopyKind, CopyOp
from .keys import Keys

# Evicted prefixes are remembered by their tokens, a fraction of what their KV took.
_LEAST_GHOSTS = 4096
_GHOSTS_A_SLAB = 8


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class HybridPrefixCache(PrefixCache):
    """The tree and its waiting copies; names the arena. The methods here hand out ids; all others
    are the tree's own. `policy` and `attention_cost` are the tree's (TreeConfig); `clock` gives it
    the time, ms."""

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
        """slabs: number of slabs to use, from the arena's first; all by default. tiers: memory
        below the arena, the nearest first."""
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
        """Return the copies decided since the last call. The caller runs them, see invariant 2."""
        taken = tuple(self._copies)
        self._copies.clear()
        return taken

    def _follow_moves(self) -> None:
        """Queue the page copies of the tree's moves. The tree moves pages to empty a slab. Their KV
        must follow before the slab is written."""
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
        """Return an allocation to compute. After the waiting copies, working_slots[0] holds the
        state after cached_tokens tokens."""
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
        """Return an allocation that loads from a tier, or else the same as allocate()."""
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
        """Return the next copy to a lower tier, begun by this call. None: no copy waits, or the
        tier lacks space or write budget for now."""
        self.advance_to(self._clock())
        return super().next_write()

    def _fork(self, allocation: Allocation) -> None:
        """Queue the copies that start it from its checkpoint, or from nothing."""
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
        """Return an allocation for a sender to write. It is granted at once, so that its ids cannot
        be released by mistake."""
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
        """Insert a checkpoint. Its copy waits on return, like those of other calls. REQUIRES: the
        KV before the boundary is written."""
        copy = super().insert_midway(allocation, boundary, slot, kind)
        self._follow_moves()
        if copy is not None:
            self._copies.append(CopyOp(CopyKind.PAGE, *copy))
        return copy

    def take_checkpoint_slot(self, allocation: Allocation) -> int | None:
        slot = super().take_checkpoint_slot(allocation)
        self._follow_moves()
        return slot
