"""A node's counters at one moment: plain values, the source of every gauge."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tasuki.engine.messages import StatsReply
from tasuki.transfer.liveness.link_status import NodeProgress, PrefillNodeStatus
from tasuki.transfer.sending.counters import SenderCounters


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
