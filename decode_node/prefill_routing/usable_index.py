"""Who of the connected prefill nodes holds which prefix, by the batches that they send.

Owns the numbers by which the C++ index knows nodes. Thread rule: the event loop.
Invariants: what is listed are hints, for the node itself looks again; a node that breaks a bound or
an order loses all its entries and nobody else's; no node has more than MOST_OF_A_NODE entries, and
all together no more than MOST_OF_ALL.
"""

import math
from dataclasses import dataclass

from tasuki.engine.messages import Tokens
from tasuki.proto import handover_pb2 as pb
from tasuki.pycache._cpp_cache import FleetIndex
from tasuki.routing.prefix_hints import Beginning
from tasuki.transfer.errors import PeerInvalid
from tasuki.transfer.protocol.usable_prefixes import prefixes_from_wire

FRESH_SECONDS = 5.0
"""A node sends a batch a second."""
MOST_OF_A_NODE = 1 << 16
MOST_OF_ALL = 1 << 21
_MOST_NODES = 1 << 16


@dataclass
class _Followed:
    """entries: listed of it. sequence: of its stream's last batch. heard_at: monotonic seconds of
    that; -inf where it stands at no snapshot."""

    entries: int = 0
    sequence: int = 0
    heard_at: float = -math.inf


class UsableIndex:
    def __init__(self) -> None:
        self._index = FleetIndex()
        self._followed: dict[int, _Followed] = {}
        self._given = 0

    def __len__(self) -> int:
        """Entries of all nodes."""
        return len(self._index)

    def entries(self, number: int) -> int | None:
        """Of one node; None where it is not followed. From any thread."""
        node = self._followed.get(number)
        return None if node is None else node.entries

    def add(self) -> int:
        """A node more; its number, which none had for long. Raises PeerInvalid where there are too
        many."""
        if len(self._followed) == _MOST_NODES:
            raise PeerInvalid(f"usable: {_MOST_NODES} nodes are followed already")
        while (number := self._given % _MOST_NODES) in self._followed:
            self._given += 1
        self._given += 1
        self._followed[number] = _Followed()
        return number

    def discard(self, number: int) -> None:
        """The node is lost."""
        self.start_over(number)
        del self._followed[number]

    def start_over(self, number: int) -> None:
        """Forget what it holds: a stream begins anew, with a snapshot."""
        if self._followed[number].entries:
            self._index.forget(number)
        self._followed[number] = _Followed()

    def apply(self, number: int, batch: pb.UsableBatch, now: float) -> int:
        """The next one of its stream; how many prefixes were in it. Raises PeerInvalid where it is
        no such one; then call start_over()."""
        node = self._followed[number]
        if batch.sequence != node.sequence + 1:
            raise PeerInvalid(f"usable.sequence {batch.sequence} follows {node.sequence}")
        if node.sequence == 0 and not batch.snapshot:
            raise PeerInvalid("usable.snapshot is not set in the stream's first batch")
        removed, stored = prefixes_from_wire(batch)
        if batch.snapshot and node.entries:
            self._index.forget(number)
            node.entries = 0
        before = len(self._index)
        for prefix in removed:
            self._index.remove(number, *prefix)
        room = min(MOST_OF_A_NODE - node.entries, MOST_OF_ALL - before) + len(removed)
        for prefix in stored[: max(0, room)]:
            self._index.store(number, *prefix)
        node.entries += len(self._index) - before
        node.sequence = batch.sequence
        node.heard_at = now
        return len(removed) + len(stored)

    def fresh(self, number: int, now: float) -> bool:
        return now - self._followed[number].heard_at <= FRESH_SECONDS

    def look_up(
        self, prompt: Tokens, salt: bytes, enough: int, seed: int
    ) -> tuple[dict[int, int], list[Beginning]]:
        """Tokens of the prompt by node that holds some, those who hold most: `enough` of them, if
        there are as many. seed: which of those that hold equally much. And its beginnings."""
        holders, beginnings = self._index.look_up(prompt, salt, enough, seed)
        return dict(holders), beginnings
