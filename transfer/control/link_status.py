"""What a front shows of the hand-overs behind it, and how far each node's threads are behind.

Plain values that a decode node fills in; a front without hand-overs shows nothing. A process that
answers beats may still do nothing: each beat reports durations, which are checked here. Pure.
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
    """Durations of the reporting node, in seconds. engine: since the engine's thread last ended a
    step; 0 where it has nothing to do. front: for how long the loop that serves callers has owed an
    answer; 0 where it owes none."""

    engine_seconds: float = 0.0
    front_seconds: float = 0.0


def progress_to_wire(progress: NodeProgress) -> handover_pb2.Progress:
    return handover_pb2.Progress(
        engine_seconds=progress.engine_seconds, front_seconds=progress.front_seconds
    )


def progress_from_wire(message: handover_pb2.Progress) -> NodeProgress | None:
    """None where it is no progress: NaN, infinite or negative."""
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
    """address: as configured. name: its own, None until it was connected once. differences: why it
    was refused. progress: as its last beat said; None while it is not connected. usable_prefixes:
    that it is known to hold, None where that is not asked of it; wait_seconds: of prefill, as it
    said last, None until then."""

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
            differences=[pb.ContractDifference(**vars(ours)) for ours in self.differences],
            engine_seconds=None if self.progress is None else self.progress.engine_seconds,
            front_seconds=None if self.progress is None else self.progress.front_seconds,
            usable_prefixes=self.usable_prefixes,
            wait_seconds=self.wait_seconds,
        )


@dataclass(frozen=True)
class HandoverStatus:
    """windows: those sent here, counted by what became of them. sent: of a node that hands on.
    peers: what nodes at the other end of a live link report of themselves, by address or name.
    """

    prefill_nodes: tuple[PrefillNodeStatus, ...] = ()
    windows: Mapping[str, int] = field(default_factory=dict)
    sent: SenderCounters | None = None
    peers: Mapping[str, NodeProgress] = field(default_factory=dict)


HandoverStatusSource: TypeAlias = Callable[[], HandoverStatus]
"""Asked on the event loop at each Stats; must not block."""
