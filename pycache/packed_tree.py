"""What the cache's tree holds as plain values: one array, which costs its maker one copy, and its
reader an object a node."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ._cpp_cache import CheckpointKind, TreeView

_STATES = (None, *(kind.value for kind in CheckpointKind))


@dataclass(frozen=True)
class Standing:
    """What of a subtree is resident. tokens: of whole pages."""

    tokens: int
    nodes: int
    states: int


@dataclass(frozen=True)
class TreeNode:
    """Named as the C++ ViewedNode. name: None of all namespaces together. above: its parent's place
    in the view; None of the first. state: why the checkpoint at its end is kept; None without
    one."""

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
