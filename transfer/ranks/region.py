"""The memory of all arenas of a node's ranks, and where each arena is in it.

Pure values, and digests in the caller's thread. It owns no memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch

from tasuki.pycache.layout import CacheLayout, rank_layout
from tasuki.transfer.transports.base import RankMemory, Transport
from tasuki.transfer.windows.descriptors import Spread
from tasuki.transfer.windows.digest import ArenaWindow, Digester, WindowDigester, WindowRows

_ALIGNMENT = 1 << 16
"""Of each arena's begin, so that a process may map one arena by itself."""


@dataclass(frozen=True)
class RankSpans:
    """Where the arenas of a node's ranks lie: one behind another, in one region of memory.

    Pure.

    layout: of one rank that has all. slabs: of each rank's arena. Raises ValueError where the heads
    cannot be shared out.
    """

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


_WORD = 8


class SpreadDigester(Digester):
    """Digests of windows out of arenas that are no neighbours, by a digester that reaches them all.

    Thread rule: as of the digester. Windows are rows by heads (head_rows.py), whose offsets are
    those of the region.
    """

    def __init__(self, own: Digester, origin: int, spread: Spread) -> None:
        """own: whose offsets count from the address `origin`, and may be negative."""
        self._own = own
        self._further = spread.begin - origin
        self._spread = spread

    def digest_rows(self, rows: WindowRows) -> int:
        placed = self._spread.placed(rows.offsets * _WORD, rows.lengths * _WORD)
        return self._own.digest_rows(replace(rows, offsets=(placed + self._further) // _WORD))

    def digest_all(self, windows: Sequence[ArenaWindow]) -> list[int]:
        raise AssertionError("a window of several ranks lies in no one arena")


class RankRegion(Protocol):
    """The memory in which the arenas of a node's ranks lie: one behind another on a CPU, else each
    on a GPU of its own. One process, which has all of it mapped, sends from there and receives into
    it.

    Owns nothing of it. Any thread.
    """

    def register(self, transport: Transport) -> None:
        """Make it known to the transport, once. Raises TransportError."""

    def digester(self) -> Digester:
        """Of windows anywhere in it."""


@dataclass(frozen=True)
class HostRegion:
    """memory: uint8 [region_bytes] of RankSpans. layout: of one rank that has all."""

    memory: torch.Tensor
    layout: CacheLayout

    def register(self, transport: Transport) -> None:
        transport.register(self.memory.data_ptr(), self.memory.nbytes)

    def digester(self) -> Digester:
        return WindowDigester(self.memory.numpy(), self.layout)


@dataclass(frozen=True)
class DeviceRegion:
    """arenas: of all ranks, as this process has them mapped. own: the first of them."""

    arenas: Sequence[RankMemory]
    own: torch.Tensor
    spans: RankSpans

    def register(self, transport: Transport) -> None:
        transport.register_ranks(self.arenas, self.spans.arena_bytes, self.spans.base(1))

    def digester(self) -> Digester:
        from tasuki.transfer.windows.digest_kernel import GpuWindowDigester

        spans = self.spans
        addresses = tuple(arena.address for arena in self.arenas)
        own = GpuWindowDigester(self.own, spans.layout)
        spread = Spread(addresses, spans.arena_bytes, spans.base(1))
        return SpreadDigester(own, self.own.data_ptr(), spread)
