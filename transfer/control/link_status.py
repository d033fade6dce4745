"""Status of a node's hand-overs for its front, and the progress reported in heartbeats.

Plain values filled in by a decode node; a front without hand-overs shows nothing. A process may
answer heartbeats and still do nothing. So each heartbeat reports how long the engine and the front
have made no progress. Pure.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from tasuki.proto import handover_pb2
from tasuki.proto import inference_pb2 as pb
from tasuki.transfer.protocol.contract import Difference
from tasuki.transfer.reports import SenderCounters
from tasuki.transfer.wire import numbers_of


@dataclass(frozen=True)
class NodeProgress:
    """Progress of the reporting node, in seconds without any.

    engine_seconds: time since the engine's thread last ended a step; 0 if it has nothing to do.
    front_seconds: time for which the loop serving clients has owed an answer; 0 if it owes none.
    """

    engine_seconds: float = 0.0
    front_seconds: float = 0.0


def progress_to_wire(progress: NodeProgress) -> handover_pb2.Progress:
    return handover_pb2.Progress(
        engine_seconds=progress.engine_seconds, front_seconds=progress.front_seconds
    )


def progress_from_wire(message: handover_pb2.Progress) -> NodeProgress | None:
    """Return a peer's progress from its message; None unless durations are finite and >= 0."""
    seconds = (message.engine_seconds, message.front_seconds)
    if not all(math.isfinite(part) and part >= 0 for part in seconds):
        return None
    return NodeProgress(*seconds)


class PrefillNodeState(Enum):
    CONNECTED = "connected"
    LOST = "lost"
    REFUSED = "refused"


_STATE = numbers_of(PrefillNodeState, pb.PrefillNodeState)


@dataclass(frozen=True)
class PrefillNodeStatus:
    """Status of one prefill node.

    address: its configured HOST:PORT. name: its own name; None before the first connection.
    differences: contract fields with different values, if the node was rejected for them. progress:
    from its last heartbeat; None while it is not connected. usable_prefixes: number of prefixes it
    is known to hold; None if the index of prefixes does not follow it. wait_seconds: seconds of
    prefill waiting there, from its last report; None before one.
    """

    address: str
    name: str | None
    state: PrefillNodeState
    differences: tuple[Difference, ...] = ()
    progress: NodeProgress | None = None
    usable_prefixes: int | None = None
    wait_seconds: float | None = None

    def message(self) -> pb.PrefillNode:
        return pb.PrefillNode(
            address=self.address,
            name=self.name or "",
            state=_STATE[self.state],
            differences=[pb.ContractDifference(**vars(each)) for each in self.differences],
            engine_seconds=None if self.progress is None else self.progress.engine_seconds,
            front_seconds=None if self.progress is None else self.progress.front_seconds,
            usable_prefixes=self.usable_prefixes,
            wait_seconds=self.wait_seconds,
        )


@dataclass(frozen=True)
class HandoverStatus:
    """Status of a node's hand-overs.

    windows: number of layer chunks received by this node, by outcome. sent: counters of a sending
    node. peers: progress reported by connected nodes, by address or name.
    """

    prefill_nodes: tuple[PrefillNodeStatus, ...] = ()
    windows: Mapping[str, int] = field(default_factory=dict)
    sent: SenderCounters | None = None
    peers: Mapping[str, NodeProgress] = field(default_factory=dict)


HandoverStatusSource: TypeAlias = Callable[[], HandoverStatus]
"""Function returning the hand-over status. It is called on the event loop for each Stats request,
and must not block."""
