"""The daemons that a script is about.

Owns their processes. Invariant: each node of a pair keeps its address over its lives, so that
clients and the other node find it again.
"""

from collections.abc import Sequence
from typing import Self

from tests.harness.daemons import Node, has_met, kept_address
from tests.harness.waiting import HANG_SECONDS, until


class Daemons:
    """`with` it: at the end every node stops, and where nothing was raised it must stop well."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """In the order in which they are to stop."""
        raise NotImplementedError

    def assert_at_rest(self, seconds: float = HANG_SECONDS) -> None:
        """Nothing is held on any node."""
        for node in self.nodes:
            node.assert_at_rest(seconds)

    def close(self) -> list[int]:
        """Exit statuses."""
        return [node.stop() for node in self.nodes]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        statuses = self.close()
        assert kind is not None or not any(statuses), statuses


class Pair(Daemons):
    """A prefill and a decode node."""

    def __init__(
        self, prefill: Sequence[str], decode: Sequence[str], meet_seconds: float = HANG_SECONDS
    ) -> None:
        """prefill, decode: their flags. Returns once the two have met."""
        self._meet_seconds = meet_seconds
        self.prefill = Node("prefill", *prefill, bind=kept_address()).wait_ready()
        target = ("--prefill", self._link(self.prefill.address))
        self.decode = Node("decode", *decode, *target, bind=kept_address()).wait_ready()
        self.meet()

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.decode, self.prefill

    def _link(self, address: str) -> str:
        """Where the decode node is to look for the prefill node at `address`."""
        return address

    def meet(self) -> None:
        """Wait until the two nodes have met."""
        story = "decode and prefill do not find each other"
        until(lambda: has_met(self.decode), story, self._meet_seconds)
