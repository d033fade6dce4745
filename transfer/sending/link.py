"""A link: the way from one arena of this node to one arena of a peer.

A sender holds one `SourceArena` for each of its node's arenas that leave, and one `Link` to a peer
for each of them; today one of both. Immutable but for a link's rate.
"""

from dataclasses import dataclass, field

from tasuki.pycache.arena_key import ONLY_ARENA, ArenaKey
from tasuki.pycache.layout import CacheLayout
from tasuki.transfer.transports.base import Endpoint, Transport
from tasuki.transfer.windows.digest import Digester
from tasuki.transfer.windows.step_counter import StepCounter

from .direct_source import DirectSource, WindowSource
from .link_cost import LinkCost


@dataclass(frozen=True)
class SourceArena:
    """What leaves from an arena of this node. steps: counts the layers that the forwards which fill
    it have finished. REQUIRES: transport has registered at least `slabs` slabs of it."""

    slabs: int
    transport: Transport
    window_source: WindowSource
    steps: StepCounter
    key: ArenaKey = ONLY_ARENA

    @staticmethod
    def direct(
        layout: CacheLayout,
        transport: Transport,
        digester: Digester,
        steps: StepCounter,
        slabs: int,
    ) -> "SourceArena":
        """Of a node's only arena, whose pages and slots leave as they lie. digester: reads it."""
        return SourceArena(slabs, transport, DirectSource(layout, digester), steps)


@dataclass(frozen=True)
class Link:
    """slabs: of the peer's arena. endpoint: opened by source.transport, and closed by it."""

    source: SourceArena
    endpoint: Endpoint
    slabs: int
    rate: LinkCost = field(default_factory=LinkCost)

    def disconnect(self) -> None:
        """Raises TransportError."""
        self.source.transport.disconnect(self.endpoint)
