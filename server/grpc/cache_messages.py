"""The cache as protobuf messages: queries of its radix tree, views of the tree, and its events in
parts of at most one message. Pure functions."""

from collections.abc import Iterator
from itertools import islice

import numpy as np

from tasuki.engine.messages import NodeName
from tasuki.engine.messages.proto import EVENT, GAP
from tasuki.proto import inference_pb2 as pb
from tasuki.pycache.keys import Keys
from tasuki.pycache.packed import PackedEvents, PackedTree, Standing, TreeNode
from tasuki.server.auth.tenants import salt_of
from tasuki.server.errors import InvalidField
from tasuki.transfer.wire import Codec, Wire

EVENTS_A_MESSAGE = 4096


def parts_of(batch: PackedEvents) -> Iterator[pb.WatchEventsResponse]:
    """Yield a batch of cache events as messages, at least one even for an empty snapshot. The gap
    (lost events), if any, is in the first message."""
    lost = None if batch.gap is None else GAP.to_wire(batch.gap)
    events = iter(batch)
    left = len(batch)
    while True:
        part = [*map(EVENT.to_wire, islice(events, EVENTS_A_MESSAGE))]
        left -= len(part)
        yield pb.WatchEventsResponse(
            sequence=batch.sequence,
            snapshot=batch.is_snapshot,
            gap=lost,
            events=part,
            more=left > 0,
        )
        lost = None
        if left == 0:
            return


_LIMIT, _MOST_NODES = 256, 4096
_LONGEST_NODE_NAME = len(f"{2**31}.{2**64}")


def tree_question(
    request: pb.TreeRequest, tenant: str | None = None
) -> tuple[int, NodeName | None, Keys | None, bytes]:
    """Return limit (by default 256), under, prefix and salt of the TreeQuery for the request.
    tenant: tenant of the prefix. Raises InvalidField."""
    limit = request.limit if request.HasField("limit") else _LIMIT
    if not 1 <= limit <= _MOST_NODES:
        raise InvalidField("limit", f"is {limit}: ask for 1 to {_MOST_NODES} nodes")
    prefix = None
    if request.HasField("prefix"):
        if not request.prefix.ids:
            raise InvalidField("prefix", "is empty: give tokens, or leave it out")
        prefix = Keys(np.array(request.prefix.ids, dtype=np.int32))
    under = read_node_name(request.under) if request.HasField("under") else None
    return limit, under, prefix, salt_of(tenant, request.cache_salt)


def read_node_name(text: str) -> NodeName:
    """Return the parsed name of a tree's node. Raises InvalidField."""
    node, _, serial = text.partition(".")
    if not (node.isascii() and node.isdecimal() and serial.isascii() and serial.isdecimal()):
        raise InvalidField("under", f"is {text!r:.60}: give a node's name as Tree returned it")
    # Longer texts are not read: Python rejects thousands of digits with another error.
    if len(text) <= _LONGEST_NODE_NAME:
        name = (int(node), int(serial))
        if name[0] < 2**31 and name[1] < 2**64:
            return name
    raise InvalidField("under", f"is {text!r:.60}, which no node is called")


def node_name(name: NodeName | None) -> str:
    return "" if name is None else f"{name[0]}.{name[1]}"


_STANDING = Wire(Standing, pb.TreeStanding, states=Codec(name="checkpoints"))
_NODE = Wire(
    TreeNode,
    pb.TreeNode,
    name=Codec(read_node_name, node_name),
    allocations=Codec(name="leases"),
    is_protected=Codec(name="protected"),
    standing=_STANDING,
    hidden=_STANDING,
)


def tree_message(view: PackedTree) -> pb.TreeResponse:
    return pb.TreeResponse(nodes=map(_NODE.to_wire, view))
