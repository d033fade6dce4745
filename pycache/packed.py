"""Events and the tree of the cache as plain values: a few arrays each.

Plain, immutable values.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from struct import Struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._cpp_cache import CheckpointKind, EventBatch, TreeView

_KINDS = (
    *("page_stored", "page_removed", "checkpoint_stored", "checkpoint_removed", "cleared"),
    "checkpoint_moved",
)
_CLEARED = _KINDS.index("cleared")
_CHECKPOINT_KINDS = (None, *(kind.value for kind in CheckpointKind))
_NAMES = Struct("16s16s16s")
_UNNAMED = (None, None, None)
_ROWS_AT_ONCE = 256
"""Bounds what a reader's first event costs."""


class CacheEvent(NamedTuple):
    """One change, named as the C++ CacheEvent. checkpoint_kind: why a state is kept; None unless it
    is stored now. page: the tokens of a stored page in the stream `spelled`. place:
    the nearest that has the state, 0 for the arena, then the tiers. prefix, parent and
    namespace are None of cleared."""

    sequence: int
    kind: str
    tokens: int
    prefix: bytes | None
    parent: bytes | None
    namespace: bytes | None
    checkpoint_kind: str | None
    page: tuple[int, ...]
    place: int = 0


@dataclass(frozen=True)
class EventGap:
    """Events first_lost up to resync_from do not come one by one."""

    first_lost: int
    resync_from: int


@dataclass(frozen=True, eq=False)
class PackedEvents:
    """Events of the cache as plain values: a few arrays, which cost their maker one copy however
    many they are, and their reader an object each.

    Changes in order up to `sequence`, or a snapshot that replaces all that came before.

    numbers, names, pages: as EventBatch.packed() says. Iterate it on any thread.
    """

    sequence: int
    is_snapshot: bool
    gap: EventGap | None
    numbers: NDArray[np.uint64]
    names: bytes
    pages: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[CacheEvent]:
        page = 0
        names = _NAMES.iter_unpack(self.names)
        for start in range(0, len(self.numbers), _ROWS_AT_ONCE):
            rows = self.numbers[start : start + _ROWS_AT_ONCE].tolist()
            for (sequence, kind, checkpoint, tokens, place, length), named in zip(
                rows, islice(names, len(rows)), strict=True
            ):
                prefix, parent, namespace = named if kind != _CLEARED else _UNNAMED
                yield CacheEvent(
                    sequence,
                    _KINDS[kind],
                    tokens,
                    prefix,
                    parent,
                    namespace,
                    _CHECKPOINT_KINDS[checkpoint],
                    tuple(self.pages[page : page + length].tolist()) if length else (),
                    place,
                )
                page += length


def pack_events(batch: EventBatch) -> PackedEvents:
    gap = batch.gap
    return PackedEvents(
        batch.sequence,
        batch.is_snapshot,
        None if gap is None else EventGap(gap.first_lost, gap.resync_from),
        *batch.packed(),
    )


_STATES = (None, *(kind.value for kind in CheckpointKind))


@dataclass(frozen=True)
class Standing:
    """What of a subtree is resident. tokens: of whole pages."""

    tokens: int
    nodes: int
    states: int


@dataclass(frozen=True)
class TreeNode:
    """What the cache's tree holds as plain values: one array, which costs its maker one copy, and
    its reader an object a node.

    Named as the C++ ViewedNode. name: None of all namespaces together. above: its parent's place in
    the view; None of the first. state: why the checkpoint at its end is kept; None without one.
    """

    name: tuple[int, int] | None
    above: int | None
    depth: int
    tokens: int
    children: int
    state: str | None
    tails: int
    allocations: int
    state_pins: int
    is_protected: bool
    unused: int
    standing: Standing
    hidden: Standing


@dataclass(frozen=True, eq=False)
class PackedTree:
    """Parents come before their children. rows: as TreeView.packed() says. Iterate it on any
    thread."""

    rows: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[TreeNode]:
        return map(_node, self.rows)


def _node(row: NDArray[np.uint64]) -> TreeNode:
    node, serial, above, depth, tokens, children, state, *rest = row.tolist()
    tails, allocations, state_pins, protected, unused, *standings = rest
    return TreeNode(
        (node - 1, serial) if node else None,
        above - 1 if above else None,
        depth,
        tokens,
        children,
        _STATES[state],
        tails,
        allocations,
        state_pins,
        bool(protected),
        unused,
        Standing(*standings[:3]),
        Standing(*standings[3:]),
    )


def pack_tree(view: TreeView) -> PackedTree:
    return PackedTree(view.packed())
