"""The pair of daemons that a load is put on, and a watch over what they hold.

Owns the processes. Invariant: each node keeps its address over its
lives, so that clients find it again.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from scripts.load.memory import MemoryTrail, resident_bytes
from scripts.load.tally import Tally
from tests.harness.daemons import Node, flags, has_met, kept_address
from tests.harness.waiting import until

_SAMPLE_SECONDS = 0.5


class Nodes:
    def __init__(self, arena_mib: int) -> None:
        # More ask at once than are served in a minute.
        small = (*flags(arena_mib=arena_mib), "--queue-timeout", "600")
        self.prefill = Node("prefill", *small, bind=kept_address()).wait_ready()
        self.decode = Node(
            "decode",
            *small,
            "--prefill",
            self.prefill.address,
            *("--drain-timeout", "60", "--http-bind", "127.0.0.1:0"),
            bind=kept_address(),
        ).wait_ready()
        self.meet()

    def meet(self) -> None:
        """Wait until the decode node has found the prefill node."""
        until(lambda: has_met(self.decode), "decode and prefill do not find each other")

    async def watch_memory(self, tally: Tally, over: Callable[[], bool]) -> None:
        """A trail of each node's life that is being lived, until `over`."""
        while not over():
            for name, node in (("prefill", self.prefill), ("decode", self.decode)):
                trail = tally.memory.setdefault(f"{name} {node.pid}", MemoryTrail())
                try:
                    trail.add(resident_bytes(node.pid))
                except ProcessLookupError:
                    continue
            await asyncio.sleep(_SAMPLE_SECONDS)

    def restart(self, node: Node) -> None:
        """SIGTERM, the drain, and a new life at the old address. Blocks."""
        assert node.stop() == 0
        node.start_again()

    def kill(self, node: Node) -> None:
        """SIGKILL and a new life at the old address. Blocks."""
        node.kill()
        node.start_again()

    def assert_at_rest(self) -> None:
        for node in (self.decode, self.prefill):
            node.assert_at_rest()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        statuses = [node.stop() for node in (self.decode, self.prefill)]
        assert statuses == [0, 0] or error is not None, statuses
