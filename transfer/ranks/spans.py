"""Where the arenas of a node's ranks lie: one behind another, in one region of memory. Pure."""

from dataclasses import dataclass
from functools import cached_property

from tasuki.pycache.layout import CacheLayout
from tasuki.pycache.rank_layout import rank_layout

_ALIGNMENT = 1 << 16
"""Of each arena's begin, so that a process may map one arena by itself."""


@dataclass(frozen=True)
class RankSpans:
    """layout: of one rank that has all. slabs: of each rank's arena. Raises ValueError where the
    heads cannot be shared out."""

    layout: CacheLayout
    ranks: int
    slabs: int

    @cached_property
    def part(self) -> CacheLayout:
        """Of any rank: each has as many heads."""
        return rank_layout(self.layout, self.ranks, 0)

    @property
    def arena_bytes(self) -> int:
        """Of one rank."""
        return self.slabs * self.part.slab_bytes

    @property
    def region_bytes(self) -> int:
        """Of all."""
        return self.base(self.ranks - 1) + self.arena_bytes

    def base(self, rank: int) -> int:
        return rank * -(-self.arena_bytes // _ALIGNMENT) * _ALIGNMENT
