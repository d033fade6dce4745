"""An arena of this node that peers write into, with what reads and moves what has landed."""

from dataclasses import dataclass
from functools import cached_property

from tasuki.pycache.arena_key import ONLY_ARENA, ArenaKey
from tasuki.pycache.layout import CacheLayout
from tasuki.transfer.precision.decoding_sink import WindowSink
from tasuki.transfer.ranks.head_rows import BY_HEADS, HeadRows
from tasuki.transfer.ranks.spans import RankSpans
from tasuki.transfer.transports.base import Transport
from tasuki.transfer.windows.digest import ArenaWindow, Digester, Digestible


@dataclass(frozen=True)
class TargetArena:
    """window_sink: where windows travel encoded. spans: of the node's ranks, whose arenas of
    `slabs` slabs lie in it; None: there is one arena, which takes nothing of senders of several
    ranks. REQUIRES: transport has registered at least that, which digester reads."""

    slabs: int
    transport: Transport
    digester: Digester
    window_sink: WindowSink | None = None
    key: ArenaKey = ONLY_ARENA
    spans: RankSpans | None = None

    @property
    def codes(self) -> tuple[int, ...]:
        """Of windows that it takes, as notifications carry them."""
        if self.window_sink is not None:
            return (self.window_sink.code,)
        by_heads = () if self.spans is None else (BY_HEADS,)
        return by_heads if self.spans is not None and self.spans.ranks > 1 else (0, *by_heads)

    def part(self, layout: CacheLayout) -> CacheLayout:
        """Of each rank's arena. layout: of one rank that has all."""
        return layout if self.spans is None else self.spans.part

    def digestible(self, window: ArenaWindow, code: int) -> Digestible:
        """REQUIRES: the code is one of those."""
        return self._by_heads.of_window(window) if code == BY_HEADS else window

    @cached_property
    def _by_heads(self) -> HeadRows:
        assert self.spans is not None
        return HeadRows(self.spans, self.spans.ranks)
