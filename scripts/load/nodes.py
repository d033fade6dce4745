"""The pair of daemons that a load is put on, and a watch over what they hold."""

import asyncio
from collections.abc import Callable

from scripts.load.memory import MemoryTrail
from scripts.load.tally import Tally
from scripts.pair import Pair
from scripts.processes import resident
from tests.harness.daemons import Node, flags

_SAMPLE_SECONDS = 0.5


class Nodes(Pair):
    def __init__(self, arena_mib: int) -> None:
        # More ask at once than are served in a minute.
        small = (*flags(arena_mib=arena_mib), "--queue-timeout", "600")
        super().__init__(small, (*small, "--drain-timeout", "60", "--http-bind", "127.0.0.1:0"))

    async def watch_memory(self, tally: Tally, over: Callable[[], bool]) -> None:
        """A trail of each node's life that is being lived, until `over`."""
        while not over():
            for name, node in (("prefill", self.prefill), ("decode", self.decode)):
                trail = tally.memory.setdefault(f"{name} {node.pid}", MemoryTrail())
                if held := resident(node.pid):
                    trail.add(held)
            await asyncio.sleep(_SAMPLE_SECONDS)

    def restart(self, node: Node) -> None:
        """SIGTERM, the drain, and a new life at the old address. Blocks."""
        assert node.stop() == 0
        node.start_again()

    def kill(self, node: Node) -> None:
        """SIGKILL and a new life at the old address. Blocks."""
        node.kill()
        node.start_again()
