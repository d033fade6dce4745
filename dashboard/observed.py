"""Inputs of metrics, history and traces: plain values.

ObservedMessage: the type of the engine's messages given to metrics, history and traces. They get
only the number of tokens. NodeReport: a node's counters at one moment, the source of every gauge.
FrontReport: the API server's own state at one moment, available even if the engine does not answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from tasuki.engine import messages as m
from tasuki.engine.messages import PictureCounts, StatsReply
from tasuki.transfer.control.link_status import NodeProgress, PrefillNodeStatus
from tasuki.transfer.reports import SenderCounters

ObservedMessage = (
    m.Submit
    | m.Finished
    | m.Rejected
    | m.Evicted
    | m.TransferEnded
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
class PictureFiles:
    """The server's part of a node's pictures. counts: of those before the engine. held: bytes of
    picture files kept between requests, by holder: sessions, responses."""

    counts: PictureCounts = field(default_factory=PictureCounts)
    held: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeReport:
    """The counters of a node at one moment. prefill_nodes: number of prefill nodes by state.
    windows: number of layer chunks sent here, by outcome. sent: counters of a node handing prompts
    over. peers: the progress reported by linked nodes, by address or name. chat_tokens: tokens of
    rendered conversations, by their source; empty for a node without rendering. links: a decode
    node's links to prefill nodes. pictures: the server's counts of pictures. about: `node` (its
    name), `role`, `model`, `version`, and `started_at` in seconds since 1970."""

    stats: StatsReply
    prefill_nodes: Mapping[str, int] = field(default_factory=dict)
    windows: Mapping[str, int] = field(default_factory=dict)
    sent: SenderCounters | None = None
    peers: Mapping[str, NodeProgress] = field(default_factory=dict)
    chat_tokens: Mapping[str, int] = field(default_factory=dict)
    links: Sequence[PrefillNodeStatus] = ()
    pictures: PictureFiles = field(default_factory=PictureFiles)
    about: Mapping[str, str] = field(default_factory=dict)


class NodeState(Enum):
    """State of a node for load balancers. starting: the engine has not answered yet. lost: the
    engine has died, or the watchdog declared it dead."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    LOST = "lost"


@dataclass(frozen=True)
class DiskRoom:
    """Space of a file system in bytes. free: space available to a user without privileges. total:
    all space."""

    free: int
    total: int


@dataclass(frozen=True)
class FrontReport:
    """The API server's state at one moment. silent_seconds: time since the unanswered question for
    the engine's counters; 0 if the counters are current. failures: number of clients' calls ended
    by an error, by kind. certificates: expiry of the certificates in use in seconds since 1970, by
    setting. disks: free space of each configured folder, by its setting."""

    state: NodeState = NodeState.READY
    silent_seconds: float = 0.0
    failures: Mapping[str, int] = field(default_factory=dict)
    certificates: Mapping[str, float] = field(default_factory=dict)
    disks: Mapping[str, DiskRoom] = field(default_factory=dict)


READY = FrontReport()
"""Report of a ready node with nothing else to report."""
