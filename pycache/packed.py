"""Events and the prefix tree of the cache as plain, immutable values: a few arrays each."""

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
"""Number of event rows unpacked together. It limits the time until a reader has the first event."""


class CacheEvent(NamedTuple):
    """One change of the cache, with the field names of the C++ CacheEvent. tokens: length of the
    prefix in tokens. checkpoint_kind: the reason for keeping a state; None unless the event stores
    a state. page: token ids of a stored page in the stream `spelled`. place: the nearest memory
    with the state: 0 is the arena, then the tiers in order. prefix, parent and namespace are None
    for a `cleared` event."""

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
    """A gap in the events. Events with the sequence numbers from first_lost up to resync_from are
    not delivered one by one."""

    first_lost: int
    resync_from: int


@dataclass(frozen=True, eq=False)
class PackedEvents:
    """Events of the cache as plain values in a few arrays. The writer makes one copy for any number
    of events. The reader makes one object for each event.

    They are changes in order up to the number `sequence`, or a snapshot that replaces all earlier
    events.

    numbers, names, pages: see EventBatch.packed(). Iterate on any thread.
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
    """The part of a subtree in the arena. tokens: number of tokens in whole pages; nodes, states:
    number of tree nodes and of checkpoint states."""

    tokens: int
    nodes: int
    states: int


@dataclass(frozen=True)
class TreeNode:
    """A node of the cache's prefix tree as a plain value, with the field names of the C++
    ViewedNode.

    name: the node's number and serial; None for the node of all namespaces together. above: index
    of its parent in the view; None for the first node. depth: tokens from the root to the node's
    end. state: the reason for keeping the checkpoint at its end; None without a checkpoint. The
    view is one array: its writer makes one copy, and its reader makes one object per node.
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
    """The nodes of the prefix tree in one array, parents before their children. rows: one row per
    node, see TreeView.packed(). Any thread may iterate over it."""

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
