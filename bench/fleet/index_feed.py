"""The prefix index of a simulated fleet, updated by its nodes' cache events like a real
subscriber's index.

Events arrive with a delay, and some are lost. After a gap in a node's sequence numbers the whole
node is requested again. Owns a watch of each node's tree. Thread rule: one thread. Deterministic by
its seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tasuki.pycache._cpp_cache import EventBatch, FleetIndex, PrefixCache

_NEVER_GAPS = 1 << 20


@dataclass(frozen=True, slots=True)
class Change:
    """One message of cache events about a node. subscription: counts the node's subscriptions;
    changes of an older one are ignored."""

    node: int
    subscription: int
    batch: EventBatch


class IndexFeed:
    def __init__(
        self, trees: Sequence[PrefixCache], seconds: float, lost: float, seed: int
    ) -> None:
        """Set up the index. seconds: delay from a tree's change until the index has it. lost: share
        of lost messages, 0 to 1."""
        self.index = FleetIndex()
        self.seconds = seconds
        self.snapshots = 0
        """Number of whole snapshots requested after a gap in a node's messages."""
        self._trees = trees
        self._lost = lost
        self._random = Random(seed)
        self._watches = [tree.watch("usable", _NEVER_GAPS) for tree in trees]
        self._subscriptions = [0] * len(trees)
        self._sequences: list[int | None] = [None] * len(trees)
        self._listed = [False] * len(trees)

    def changes(self, node: int) -> Change | None:
        """Return a node's changes since the last call. Returns None if nothing changed or the
        message is lost."""
        batch = self._trees[node].drain_events(self._watches[node])
        if not len(batch) and not batch.is_snapshot:
            return None
        if self._lost and self._random.random() < self._lost:
            return None
        return Change(node, self._subscriptions[node], batch)

    def apply(self, change: Change) -> Change | None:
        """Apply a change to the index, unless its subscription is older. If its sequence number
        shows a lost message, return the node's snapshot, to be delivered after the delay; else
        None."""
        node, batch = change.node, change.batch
        if change.subscription != self._subscriptions[node]:
            return None
        if batch.is_snapshot:
            self.forget(node)
        elif self._sequences[node] != batch.sequence - len(batch):
            return self._subscribe_again(node)
        self._sequences[node] = batch.sequence
        for event in batch:
            if event.prefix is None or event.parent is None:
                self.forget(node)
                continue
            if event.kind == "checkpoint_stored":
                self.index.store(node, event.prefix, event.parent, event.tokens)
            elif event.kind == "checkpoint_removed":
                self.index.remove(node, event.prefix, event.parent, event.tokens)
            self._listed[node] = True
        return None

    def forget(self, node: int) -> None:
        if self._listed[node]:
            self.index.forget(node)
            self._listed[node] = False

    def _subscribe_again(self, node: int) -> Change | None:
        before = self._watches[node]
        # Subscribe before unsubscribing: a tree without watchers drops its names.
        self._watches[node] = self._trees[node].watch("usable", _NEVER_GAPS)
        self._trees[node].unwatch(before)
        self._subscriptions[node] += 1
        self._sequences[node] = None
        self.snapshots += 1
        return self.changes(node)
