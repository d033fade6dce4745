"""An arena of this node that peers write into, with what reads and moves what has landed."""

from dataclasses import dataclass

from tasuki.pycache.arena_key import ONLY_ARENA, ArenaKey
from tasuki.transfer.precision.decoding_sink import WindowSink
from tasuki.transfer.transports.base import Transport
from tasuki.transfer.windows.digest import Digester


@dataclass(frozen=True)
class TargetArena:
    """window_sink: where windows travel encoded. REQUIRES: transport has registered at least
    `slabs` slabs of the arena, which digester reads."""

    slabs: int
    transport: Transport
    digester: Digester
    window_sink: WindowSink | None = None
    key: ArenaKey = ONLY_ARENA

    @property
    def code(self) -> int:
        """Of the precision, as notifications carry it."""
        return 0 if self.window_sink is None else self.window_sink.code
