"""How far a node's threads are behind, as each beat reports it to its peers: a process that answers
may still do nothing.

Plain values, and what of them is believed. Pure.
"""

import math
from dataclasses import dataclass

from tasuki.proto import handover_pb2 as pb


@dataclass(frozen=True)
class NodeProgress:
    """Durations of the reporting node, in seconds. engine: since the engine's thread last ended a
    step; 0 where it has nothing to do. front: for how long the loop that serves callers has owed an
    answer; 0 where it owes none."""

    engine_seconds: float = 0.0
    front_seconds: float = 0.0


def progress_to_wire(progress: NodeProgress) -> pb.Progress:
    return pb.Progress(engine_seconds=progress.engine_seconds, front_seconds=progress.front_seconds)


def progress_from_wire(message: pb.Progress) -> NodeProgress | None:
    """None where it is no progress: NaN, infinite or negative."""
    seconds = (message.engine_seconds, message.front_seconds)
    if not all(math.isfinite(part) and part >= 0 for part in seconds):
        return None
    return NodeProgress(*seconds)
