"""Which blocks a gateway may count on: the pages that lead to a checkpoint.

A page of a hybrid model is worth nothing to a request that ends behind the last state of its path:
a router that were told of it would promise hits that nobody gets. Owns what stands, with tokens,
since gateways hash for themselves. Knows no wire format. One watch, one thread. Invariants: a page
is announced exactly while a checkpoint stands at its end or below; parents are announced before
their children and withdrawn after them; only the namespace without a salt is announced, since a
gateway names none.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..pycache._cpp_cache import PAGE_TOKENS, CacheEvent, EventBatch, prefix_hashes


@dataclass(frozen=True)
class Block:
    prefix: bytes
    parent: bytes
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Announced:
    """parent: None at the beginning of a prompt. blocks: each the child of the one before."""

    parent: bytes | None
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Withdrawn:
    """Children first."""

    prefixes: tuple[bytes, ...]


@dataclass(frozen=True)
class Cleared:
    """Nothing stands any more."""


Change = Announced | Withdrawn | Cleared


class UsableBlocks:
    def __init__(self) -> None:
        self._root = prefix_hashes(np.empty(0, dtype=np.int32))[0]
        self._pages: dict[bytes, Block] = {}
        # By page: checkpoints at its end or inside the next page, and children that lead to one.
        self._worth: dict[bytes, int] = {}

    def apply(self, batch: EventBatch) -> list[Change]:
        """Batches of the watch `spelled`, in order, a snapshot first."""
        changes: list[Change] = []
        if batch.is_snapshot:
            self._clear()
            changes.append(Cleared())
        for event in batch:
            changes += self._changes(event)
        return changes

    def _changes(self, event: CacheEvent) -> Iterable[Change]:
        prefix, parent = event.prefix, event.parent
        if prefix is None or parent is None:
            self._clear()
            return [Cleared()]
        if event.kind == "page_stored":
            if parent == self._root or parent in self._pages:
                self._pages[prefix] = Block(prefix, parent, tuple(event.page))
        elif event.kind == "page_removed":
            self._pages.pop(prefix, None)
        else:
            place = parent if event.tokens % PAGE_TOKENS else prefix
            if place in self._pages:
                stored = event.kind == "checkpoint_stored"
                return self._announce(place) if stored else self._withdraw(place)
        return ()

    def _announce(self, place: bytes) -> Iterable[Change]:
        chain: list[Block] = []
        while place != self._root:
            worth = self._worth.get(place, 0)
            self._worth[place] = worth + 1
            if worth:
                break
            chain.append(self._pages[place])
            place = chain[-1].parent
        if chain:
            yield Announced(None if place == self._root else place, tuple(reversed(chain)))

    def _withdraw(self, place: bytes) -> Iterable[Change]:
        gone: list[bytes] = []
        while place != self._root:
            self._worth[place] -= 1
            if self._worth[place]:
                break
            del self._worth[place]
            gone.append(place)
            place = self._pages[place].parent
        if gone:
            yield Withdrawn(tuple(gone))

    def _clear(self) -> None:
        self._pages.clear()
        self._worth.clear()
