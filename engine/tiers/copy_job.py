"""A copy between two places as plain data, and how it ended."""

from dataclasses import dataclass
from enum import Enum

from tasuki.pycache._cpp_cache import TierLoad, TierWrite


class Direction(Enum):
    DOWN = "written"
    """From the arena."""
    UP = "loaded"
    """To it."""


class JobEnd(Enum):
    DONE = "done"
    CANCELLED = "cancelled"
    """Asked for, or the tier closes."""
    MISMATCH = "mismatch"
    """What landed is not what was written."""
    BROKEN = "broken"
    """The copy raised."""


@dataclass(frozen=True)
class CopyJob:
    """transfer: the tree's number of it. pages, slot: (source, target), ids of their places."""

    transfer: int
    direction: Direction
    pages: tuple[tuple[int, int], ...]
    slot: tuple[int, int]

    @staticmethod
    def of_write(write: TierWrite) -> "CopyJob":
        return CopyJob(write.id, Direction.DOWN, tuple(write.pages), write.slot)

    @staticmethod
    def of_load(load: TierLoad) -> "CopyJob":
        """REQUIRES: there is one tier."""
        pages = tuple((source, target) for _, source, target in load.pages)
        _, source, target = load.state
        return CopyJob(load.id, Direction.UP, pages, (source, target))
