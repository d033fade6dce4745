"""A copy between two places as plain data, and how it ended."""

from collections import defaultdict
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from tasuki.pycache._cpp_cache import TierLoad, TierWrite

from .load_barrier import LoadBarrier


class Direction(Enum):
    DOWN = "written"
    """From the arena, or from the tier above."""
    UP = "loaded"
    """To the arena."""


class JobEnd(Enum):
    DONE = "done"
    CANCELLED = "cancelled"
    """Asked for, or the tier closes."""
    MISMATCH = "mismatch"
    """What landed is not what was written."""
    BROKEN = "broken"
    """The copy raised, or would stand behind one that does not end."""


@dataclass(frozen=True, eq=False)
class WriteLabel:
    """What a write brings, by its tokens. start: tokens before them; above: the tier's page that
    ends there; kind: the state's."""

    salt: bytes
    start: int
    above: int | None
    tokens: NDArray[np.int32]
    kind: str


@dataclass(frozen=True)
class CopyJob:
    """transfer: the tree's number of it. pages, slot: (source, target), ids of their places; slot
    is None where another tier has the load's state. label: of a write to a tier that outlives its
    node. barrier: of a load that somebody may compute behind."""

    transfer: int
    direction: Direction
    pages: tuple[tuple[int, int], ...]
    slot: tuple[int, int] | None
    label: WriteLabel | None = None
    barrier: LoadBarrier | None = None

    @staticmethod
    def of_write(write: TierWrite, label: WriteLabel | None = None) -> "CopyJob":
        return CopyJob(write.id, Direction.DOWN, tuple(write.pages), write.slot, label)


def parts_of_load(load: TierLoad, barrier: LoadBarrier | None) -> dict[int, CopyJob]:
    """What each tier brings of it, by tier. barrier: opened by the part of a load that has but
    one; None: nobody waits there."""
    pages: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for tier, source, target in load.pages:
        pages[tier].append((source, target))
    from_tier, source, target = load.state
    is_whole = set(pages) <= {from_tier}
    return {
        tier: CopyJob(
            load.id,
            Direction.UP,
            tuple(pages[tier]),
            (source, target) if tier == from_tier else None,
            barrier=barrier if is_whole else None,
        )
        for tier in sorted({*pages, from_tier})
    }
