"""Inputs of metrics, history and traces: plain values.

ObservedMessage: The engine's messages that they observe. Observers see the number of tokens only.
NodeReport: A node's counters at one moment, the source of every gauge.
FrontReport: The front's own knowledge at one moment, whether or not the engine answers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from tasuki.engine import messages as m
from tasuki.engine.messages import StatsReply
from tasuki.transfer.control.link_status import NodeProgress, PrefillNodeStatus
from tasuki.transfer.reports import SenderCounters

ObservedMessage = (
    m.Submit
    | m.Finished
    | m.Rejected
    | m.Evicted
    | m.RoomEnded
    | m.HandoverFailed
    | m.HandoverCancelled
    | m.WriterFenced
    | m.PeersChanged
    | m.PullCommitted
    | m.PullLost
    | m.PullFenced
    | m.StateLeft
    | m.StateFetched
)


@dataclass(frozen=True)
class NodeReport:
    """prefill_nodes: counts by state. windows: counts of windows sent here, by outcome. sent: of a
    node that hands prompts over. peers: the progress that linked nodes report of themselves, by
    address or name. chat_tokens: of rendered conversations, by their source; empty of a node that
    renders none. links: those that a decode node has to prefill nodes. about: `node` (its name),
    `role`, `model`, `version`, and `started_at` in seconds since 1970."""

    stats: StatsReply
    prefill_nodes: Mapping[str, int] = field(default_factory=dict)
    windows: Mapping[str, int] = field(default_factory=dict)
    sent: SenderCounters | None = None
    peers: Mapping[str, NodeProgress] = field(default_factory=dict)
    chat_tokens: Mapping[str, int] = field(default_factory=dict)
    links: Sequence[PrefillNodeStatus] = ()
    about: Mapping[str, str] = field(default_factory=dict)


class NodeState(Enum):
    """Of a node, as load balancers see it. starting: the engine has not answered yet. lost: the
    engine has died, or the watchdog gave it up."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    LOST = "lost"


@dataclass(frozen=True)
class DiskRoom:
    """Bytes of a file system: those that a user may still write, and all."""

    free: int
    total: int


@dataclass(frozen=True)
class FrontReport:
    """silent_seconds: for how long the engine has owed the counters beside this; 0 where they are
    its counters now. failures: clients' calls that an error ended, by its kind. certificates:
    seconds since 1970 until which those in use are valid, by the setting that names them. disks: by
    the setting that names a folder."""

    state: NodeState = NodeState.READY
    silent_seconds: float = 0.0
    failures: Mapping[str, int] = field(default_factory=dict)
    certificates: Mapping[str, float] = field(default_factory=dict)
    disks: Mapping[str, DiskRoom] = field(default_factory=dict)


READY = FrontReport()
"""Of a node with nothing else to report."""
