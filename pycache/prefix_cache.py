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

from ._cpp_cache import (
    Allocation,
    CheckpointKind,
    HeldState,
    Match,
    PrefixCache,
    TierConfig,
    TierWrite,
    TreeConfig,
)
from .arena import Arena, CopyKind, CopyOp
from .keys import Keys
from .weights_namespace import START, WeightsNamespace

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
        self.weights = START
        """The namespace of the weights in use."""
        self._cursors: dict[int, tuple[int, bytes]] = {}
        """Open cursors by their ids for callers: the tree's id, and the client's salt."""

    def change_weights(self, weights: WeightsNamespace) -> None:
        """Name states of other weights from now on. Earlier states are not found any more, unless
        their weights come back. Allocations stay, and insert below their own weights."""
        self.weights = weights
        for cursor, (inner, salt) in self._cursors.items():
            super().close_cursor(inner)
            self._cursors[cursor] = super().open_cursor(weights.salted(salt)), salt

    def open_cursor(self, salt: bytes = b"") -> int:
        inner = super().open_cursor(self.weights.salted(salt))
        self._cursors[inner] = inner, salt
        return inner

    def fork_cursor(self, cursor: int) -> int:
        inner = super().fork_cursor(self._inner(cursor))
        self._cursors[inner] = inner, self._cursors[cursor][1]
        return inner

    def close_cursor(self, cursor: int) -> None:
        super().close_cursor(self._inner(cursor))
        del self._cursors[cursor]

    def _inner(self, cursor: int) -> int:
        """Return the tree's id of a cursor; an unknown cursor's own id, for the tree to refuse."""
        return self._cursors.get(cursor, (cursor, b""))[0]

    def _place(self, cursor: int | None) -> int | None:
        return None if cursor is None else self._inner(cursor)

    def match(self, tokens: Keys, salt: bytes = b"", cursor: int | None = None) -> Match:
        return super().match(tokens, self.weights.salted(salt), self._place(cursor))

    def node_at(self, tokens: Keys, salt: bytes = b"") -> tuple[int, int] | None:
        return super().node_at(tokens, self.weights.salted(salt))

    def path_to(self, state: HeldState) -> tuple[bytes, Keys] | None:
        """Return the client's salt and the tokens of a state; None if it is gone, or is of other
        weights."""
        found = super().path_to(state)
        salt = None if found is None else self.weights.client_salt(found[0])
        return None if found is None or salt is None else (salt, found[1])

    def adopt(
        self, tier: int, tokens: Keys, *, salt: bytes, kind: CheckpointKind
    ) -> tuple[list[int], int, int] | None:
        return super().adopt(tier, tokens, salt=self.weights.salted(salt), kind=kind)

    def allocate_to_send(self, tokens: Keys, *, salt: bytes = b"") -> Allocation | None:
        return super().allocate_to_send(tokens, salt=self.weights.salted(salt))

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
            salt=self.weights.salted(salt),
            capacity_tokens=capacity_tokens,
            working_slots=working_slots,
            cursor=self._place(cursor),
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
            salt=self.weights.salted(salt),
            capacity_tokens=capacity_tokens,
            working_slots=working_slots,
            cursor=self._place(cursor),
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
            salt=self.weights.salted(salt),
            capacity_tokens=capacity_tokens,
            working_slots=working_slots,
            cursor=self._place(cursor),
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
