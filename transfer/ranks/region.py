"""The memory in which the arenas of a node's ranks lie: one behind another on a CPU, else each on a
GPU of its own. One process, which has all of it mapped, sends from there and receives into it.

Owns nothing of it. Any thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from tasuki.pycache.layout import CacheLayout
from tasuki.transfer.transports.base import RankMemory, Transport
from tasuki.transfer.windows.digest import Digester, WindowDigester
from tasuki.transfer.windows.spread import Spread

from .spans import RankSpans
from .spread_digester import SpreadDigester


class RankRegion(Protocol):
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
