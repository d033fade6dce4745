"""What a fleet was asked for and how it stood, of some seconds; and how many nodes it then had."""

from dataclasses import dataclass
from enum import StrEnum


class NodeRole(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"

    @property
    def other(self) -> "NodeRole":
        return NodeRole.DECODE if self is NodeRole.PREFILL else NodeRole.PREFILL


@dataclass(frozen=True)
class NodeCount:
    """Of one role. ready: nodes that take requests. coming: nodes that were placed, or are changing
    to this role, and do not take any yet. A node that drains is neither."""

    ready: int
    coming: int = 0

    @property
    def all(self) -> int:
        return self.ready + self.coming


@dataclass(frozen=True)
class PrefillObserved:
    """Sums over all prefill nodes. work: seconds of uncached prefill that were asked for, a second;
    of a second's work one node does one. mean, square: of a prompt's seconds of uncached prefill,
    and of their squares; 0 where no prompt ended. backlog: seconds of prefill that wait."""

    work: float
    mean: float = 0.0
    square: float = 0.0
    backlog: float = 0.0


@dataclass(frozen=True)
class DecodeObserved:
    """Sums over all decode nodes. tokens: that were asked for, a second. running: answers that are
    being written; waiting: those for which a node lacks memory. step: mean seconds of a step, and
    batch: running answers a node, both of the nodes that are warm; 0 where none is. held: of one
    node's cache memory, what a running answer holds."""

    tokens: float
    running: float = 0.0
    waiting: float = 0.0
    step: float = 0.0
    batch: float = 0.0
    held: float = 0.0


@dataclass(frozen=True)
class Observation:
    """at: monotonic seconds of its end. nodes: as they were then, before anything that is done
    because of it."""

    at: float
    nodes: dict[NodeRole, NodeCount]
    prefill: PrefillObserved
    decode: DecodeObserved
