"""What a sender has done since it started: plain counts that only grow.

Thread rule: the transfer thread counts, any thread reads.
"""

from dataclasses import dataclass, field

from tasuki.transfer.windows.send_report import Drain

from .outgoing_room import RoomEnd, RoomSent


@dataclass
class SenderCounters:
    """rooms: sent whole, broken, or forced (given up before they had drained). The rest is of those
    sent whole."""

    rooms: dict[str, int] = field(default_factory=lambda: {"sent": 0, "broken": 0, "forced": 0})
    windows: int = 0
    bytes: int = 0
    hidden_seconds: float = 0.0
    exposed_seconds: float = 0.0

    def count(self, end: RoomEnd) -> None:
        if not isinstance(end, RoomSent):
            self.rooms["forced" if end.drain is Drain.FORCED else "broken"] += 1
            return
        self.rooms["sent"] += 1
        self.windows += end.report.windows
        self.bytes += end.report.bytes
        self.hidden_seconds += end.report.hidden_seconds
        self.exposed_seconds += end.report.exposed_seconds
