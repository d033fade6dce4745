"""A link: the way from one arena of this node to one arena of a peer.

A sender holds one `SourceArena` for each of its node's arenas that leave, and one `Link` to a peer
for each of them; today one of both. Immutable but for a link's rate.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property

from tasuki.pycache.arena_key import ONLY_ARENA, ArenaKey
from tasuki.pycache.layout import CacheLayout
from tasuki.pycache.rank_layout import rank_layout
from tasuki.transfer.ranks.spans import RankSpans
from tasuki.transfer.transports.base import Endpoint, Transport
from tasuki.transfer.windows.digest import Digester
from tasuki.transfer.windows.step_counter import StepCounter

from .direct_source import DirectSource, WindowSource
from .link_cost import LinkCost


@dataclass(frozen=True)
class SourceArena:
    """What leaves from an arena of this node. steps: counts the layers that the forwards which fill
    it have finished. ranks: whose arenas of `slabs` slabs lie in it, one behind another. REQUIRES:
    transport has registered at least that."""

    slabs: int
    transport: Transport
    window_source: WindowSource
    steps: StepCounter
    key: ArenaKey = ONLY_ARENA
    ranks: int = 1

    def part(self, layout: CacheLayout) -> CacheLayout:
        """Of each rank's arena. layout: of one rank that has all."""
        return layout if self.ranks == 1 else rank_layout(layout, self.ranks, 0)

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
    """window_source: the source's, toward the peer's arenas, which lie as `theirs` says. endpoint:
    opened by source.transport, and closed by it."""

    source: SourceArena
    window_source: WindowSource
    endpoint: Endpoint
    theirs: RankSpans
    rate: LinkCost = field(default_factory=LinkCost)

    @cached_property
    def rings(self) -> bool:
        """Whether the ends of what is posted ring."""
        return self.source.transport.rings(self.endpoint)

    @property
    def ready_until(self) -> float:
        """Windows up to that tick may be given to the transport now."""
        return math.inf if self.holds else self.source.steps.value

    @cached_property
    def holds(self) -> bool:
        """Whether windows may be given to the transport before their ticks."""
        source = self.window_source
        return (
            source.in_place
            and source.digester.of_gpu is not None
            and self.source.transport.holds(self.endpoint)
        )

    def disconnect(self) -> None:
        """Raises TransportError."""
        self.source.transport.disconnect(self.endpoint)
