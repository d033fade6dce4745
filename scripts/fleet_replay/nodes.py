"""Two prefill and two decode daemons of the embedded model."""

from collections.abc import Sequence

from scripts.pair import Daemons
from tests.harness.daemons import Node, flags, kept_address, meet

POLICY = "value"
"""What evicts."""


class TwoByTwo(Daemons):
    """Each keeps its address over its lives. Returns once all have met."""

    def __init__(self, prefill: Sequence[str], decode: Sequence[str], arena_mib: int) -> None:
        """prefill, decode: flags of those nodes, besides the model's. arena_mib: of each node."""
        # The simulated ones keep no entries of a draft layer.
        cache = ("--cache-policy", POLICY, "--draft-layer", "off")
        shared = (*flags(arena_mib=arena_mib), *cache)
        self.prefill = [
            Node("prefill", *shared, *prefill, "--name", name, bind=kept_address()).wait_ready()
            for name in ("p1", "p2")
        ]
        targets = ",".join(node.address for node in self.prefill)
        self.decode = [
            Node("decode", *shared, *decode, "--name", name, "--prefill", targets).wait_ready()
            for name in ("d1", "d2")
        ]
        for node in self.decode:
            meet(node)

    def kill_one(self) -> None:
        """SIGKILL of a prefill node, and a new life at the old address. Blocks."""
        self.prefill[0].kill()
        self.prefill[0].start_again()

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (*self.decode, *self.prefill)
