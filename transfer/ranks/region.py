"""Memory region with the arenas of all ranks of a node, and the place of each arena in it.

Pure values, and digests in the caller's thread. It owns no memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch

from tasuki.pycache.layout import CacheLayout, rank_layout
from tasuki.transfer.chunks.descriptors import Spread
from tasuki.transfer.chunks.digest import ArenaChunk, ChunkDigester, ChunkRows, Digester
from tasuki.transfer.transports.base import RankMemory, Transport

_ALIGNMENT = 1 << 16
"""Alignment in bytes of each arena's beginning, so a process can map a single arena."""


@dataclass(frozen=True)
class RankSpans:
    """Places of the arenas of a node's ranks: one behind another, in one region of memory.

    Pure. layout: layout of a single rank with all heads. slabs: size of each rank's arena in slabs
    (fixed-size parts). Raises ValueError if the heads cannot be divided among the ranks.
    """

    layout: CacheLayout
    ranks: int
    slabs: int

    @cached_property
    def part(self) -> CacheLayout:
        """Return the layout of one rank's arena: all ranks have equally many heads."""
        return rank_layout(self.layout, self.ranks, 0)

    @property
    def arena_bytes(self) -> int:
        """Return the bytes of one rank's arena."""
        return self.slabs * self.part.slab_bytes

    @property
    def region_bytes(self) -> int:
        """Return the bytes of the whole region with all ranks' arenas."""
        return self.base(self.ranks - 1) + self.arena_bytes

    def base(self, rank: int) -> int:
        return rank * -(-self.arena_bytes // _ALIGNMENT) * _ALIGNMENT


_WORD = 8


class SpreadDigester(Digester):
    """Digester of arenas at unconnected addresses. It uses one inner digester with access to all of
    them, and has its thread rule.

    Layer chunks are given as rows by heads (head_rows.py), with offsets in the region.
    """

    def __init__(self, own: Digester, origin: int, spread: Spread) -> None:
        """own: the inner digester; its offsets count from the address `origin`, and may be
        negative. spread: addresses of the arenas."""
        self._own = own
        self._further = spread.begin - origin
        self._spread = spread

    def digest_rows(self, rows: ChunkRows) -> int:
        placed = self._spread.placed(rows.offsets * _WORD, rows.lengths * _WORD)
        return self._own.digest_rows(replace(rows, offsets=(placed + self._further) // _WORD))

    def digest_all(self, chunks: Sequence[ArenaChunk]) -> list[int]:
        raise AssertionError("a layer chunk of several ranks lies in no single arena")


class RankRegion(Protocol):
    """Memory of the arenas of a node's ranks: one behind another on a CPU, else each on a GPU of
    its own.

    One process has all of it mapped; it sends from this memory and receives into it. Owns none of
    the memory. Any thread.
    """

    def register(self, transport: Transport) -> None:
        """Register all ranks' memory with the transport, once. Raises TransportError."""

    def digester(self) -> Digester:
        """Return a digester of layer chunks anywhere in the region of all ranks."""


@dataclass(frozen=True)
class HostRegion:
    """Region in host memory. memory: all ranks' arenas, uint8 [region_bytes] of RankSpans. layout:
    layout of a single rank with all heads."""

    memory: torch.Tensor
    layout: CacheLayout

    def register(self, transport: Transport) -> None:
        transport.register(self.memory.data_ptr(), self.memory.nbytes)

    def digester(self) -> Digester:
        return ChunkDigester(self.memory.numpy(), self.layout)


@dataclass(frozen=True)
class DeviceRegion:
    """Region on GPUs. arenas: memory of all ranks' arenas, mapped in this process. own: bytes of
    the first arena."""

    arenas: Sequence[RankMemory]
    own: torch.Tensor
    spans: RankSpans

    def register(self, transport: Transport) -> None:
        transport.register_ranks(self.arenas, self.spans.arena_bytes, self.spans.base(1))

    def digester(self) -> Digester:
        from tasuki.transfer.chunks.digest_kernel import GpuChunkDigester

        spans = self.spans
        addresses = tuple(arena.address for arena in self.arenas)
        own = GpuChunkDigester(self.own, spans.layout)
        spread = Spread(addresses, spans.arena_bytes, spans.base(1))
        return SpreadDigester(own, self.own.data_ptr(), spread)
