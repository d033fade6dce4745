"""The radix tree as the page draws it: a bounded number of nodes, parents before children. Pure."""

from typing import Any

from tasuki.pycache.packed_tree import PackedTree, TreeNode


def tree_view(view: PackedTree) -> list[dict[str, Any]]:
    """A node a row; `above` is its parent's row. `hidden` stands below it but is not listed."""
    return [_node(node) for node in view]


def _node(node: TreeNode) -> dict[str, Any]:
    return {
        "name": None if node.name is None else f"{node.name[0]}.{node.name[1]}",
        "above": node.above,
        "depth": node.depth,
        "tokens": node.tokens,
        "children": node.children,
        "state": node.state,
        "tails": node.tails,
        "leases": node.allocations,
        "state_pins": node.state_pins,
        "protected": node.is_protected,
        "unused": node.unused,
        "standing": vars(node.standing),
        "hidden": vars(node.hidden),
    }
