"""What a node's front knows of the node at one moment, whether or not the engine answers: plain
values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


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
