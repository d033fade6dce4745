"""Which of a node's arenas one is: where its memory is, and the rank whose layers it serves."""

from dataclasses import dataclass
from enum import Enum


class Place(Enum):
    DEVICE = "device"
    """Where layers compute: a GPU's memory, or the host's where the model runs on a CPU."""
    HOST = "host"
    """Host memory below a GPU's."""


@dataclass(frozen=True)
class ArenaKey:
    """An arena's name within its node. The same page or slot id means the same tokens in every
    arena of one place, whatever the rank.

    Raises ValueError where rank is not in [0, ranks).
    """

    place: Place = Place.DEVICE
    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks:
            raise ValueError(f"rank {self.rank} is not one of {self.ranks} ranks")
