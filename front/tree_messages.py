"""What is asked of the cache's tree, and its views, as wire messages. Pure functions."""

from dataclasses import dataclass

import numpy as np

from ..engine.messages import NodeName, Tokens
from ..proto import inference_pb2 as pb
from ..pycache._cpp_cache import Standing, TreeView, ViewedNode
from .errors import InvalidField
from .tenant import salt_of

_LIMIT, _MOST_NODES = 256, 4096


@dataclass(frozen=True)
class TreeQuestion:
    """As engine.messages.TreeQuery."""

    limit: int
    under: NodeName | None
    prefix: Tokens | None
    salt: bytes


def tree_question(request: pb.TreeRequest, tenant: str | None = None) -> TreeQuestion:
    """tenant: in whose namespace a prefix is looked for. Raises InvalidField."""
    limit = request.limit if request.HasField("limit") else _LIMIT
    if not 1 <= limit <= _MOST_NODES:
        raise InvalidField("limit", f"is {limit}: ask for 1 to {_MOST_NODES} nodes")
    prefix = None
    if request.HasField("prefix"):
        if not request.prefix.ids:
            raise InvalidField("prefix", "is empty: give tokens, or leave it out")
        prefix = np.array(request.prefix.ids, dtype=np.int32)
    under = read_node_name(request.under) if request.HasField("under") else None
    return TreeQuestion(limit, under, prefix, salt_of(tenant, request.cache_salt))


def read_node_name(text: str) -> NodeName:
    """Raises InvalidField."""
    node, _, serial = text.partition(".")
    if not (node.isascii() and node.isdecimal() and serial.isascii() and serial.isdecimal()):
        raise InvalidField("under", f"is {text!r}: give a node's name as Tree told it")
    name = (int(node), int(serial))
    if name[0] >= 2**31 or name[1] >= 2**64:
        raise InvalidField("under", f"is {text!r}, which no node is called")
    return name


def node_name(name: NodeName | None) -> str:
    return "" if name is None else f"{name[0]}.{name[1]}"


def tree_message(view: TreeView) -> pb.TreeResponse:
    return pb.TreeResponse(nodes=map(_node, view))


def _node(node: ViewedNode) -> pb.TreeNode:
    return pb.TreeNode(
        name=node_name(node.name),
        above=node.above,
        depth=node.depth,
        tokens=node.tokens,
        children=node.children,
        state=None if node.state is None else node.state.value,
        tails=node.tails,
        leases=node.leases,
        state_pins=node.state_pins,
        protected=node.is_protected,
        unused=node.unused,
        standing=_standing(node.standing),
        hidden=_standing(node.hidden),
    )


def _standing(standing: Standing) -> pb.TreeStanding:
    return pb.TreeStanding(
        tokens=standing.tokens, nodes=standing.nodes, checkpoints=standing.states
    )
