"""How long a room still takes: what is planned of it and not flushed, over what its link costs.

Pure functions of rooms; callers hold the lock of whoever changes them.
"""

from collections.abc import Iterable

from tasuki.transfer.windows.descriptors import window_bytes
from tasuki.transfer.windows.unit_sizes import UnitSizes

from .outgoing_room import OutgoingRoom


def remaining_seconds(
    sizes: UnitSizes, room: OutgoingRoom, everyone: Iterable[OutgoingRoom]
) -> float | None:
    """Until all that is planned of the room is flushed, if its layers were finished now and the
    rooms on its link share it evenly; None where nothing is known of the link yet."""
    cost = room.link.rate.cost
    if cost is None:
        return None
    own = backlog_bytes(sizes, room)
    windows = len(room.waiting) + len(room.posted)
    shared = sum(
        min(own, backlog_bytes(sizes, other)) for other in everyone if other.link is room.link
    )
    return windows * cost.window_seconds + shared * cost.byte_seconds


def backlog_bytes(sizes: UnitSizes, room: OutgoingRoom) -> int:
    """Planned and not flushed."""
    waiting = sum(window_bytes(sizes, window.header) for window in room.waiting)
    return waiting + sum(posted.bytes for posted in room.posted)
