"""The cached blocks that a gateway may count as hits: the pages that lead to a checkpoint.

A hybrid model cannot use a page behind the last checkpoint of its path; a router that counted such
pages would route to hits that do not exist. Owns the cached pages with their tokens, since gateways
hash for themselves. One watch, one thread. Invariants: a page is announced exactly while a
checkpoint stands at its end or below; parents are announced before their children and withdrawn
after them; only blocks of the wanted namespace are announced, and two namespaces never share a
block.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tasuki.pycache._cpp_cache import PAGE_TOKENS, prefix_hashes
from tasuki.pycache.packed_events import CacheEvent, PackedEvents


@dataclass(frozen=True)
class Block:
    """tokens: an array, a seventh of a tuple's memory: a node of 64 GB has 50,000 pages, and each
    gateway a copy."""

    prefix: bytes
    parent: bytes
    tokens: "array[int]"


@dataclass(frozen=True)
class Announced:
    """parent: None at the beginning of a prompt. blocks: each the child of the one before.
    namespace: as CacheEvent.namespace."""

    parent: bytes | None
    blocks: tuple[Block, ...]
    namespace: bytes


@dataclass(frozen=True)
class Withdrawn:
    """Children first."""

    prefixes: tuple[bytes, ...]


@dataclass(frozen=True)
class Cleared:
    """Nothing stands any more."""


Change = Announced | Withdrawn | Cleared


def namespace_of(salt: bytes) -> bytes:
    """The namespace of a salt, as CacheEvent.namespace: the name of the empty prefix under it."""
    return prefix_hashes(np.empty(0, dtype=np.int32), salt)[0]


class UsableBlocks:
    def __init__(self, namespace: bytes | None) -> None:
        """namespace: whose blocks are wanted (CacheEvent.namespace); None: everybody's."""
        self._namespace = namespace
        self._pages: dict[bytes, Block] = {}
        # By page: checkpoints at its end or inside the next page, and children that lead to one.
        self._worth: dict[bytes, int] = {}

    def apply(self, batch: PackedEvents) -> list[Change]:
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
        root = event.namespace
        if root is None or self._namespace not in (None, root):
            return ()
        if event.kind == "page_stored":
            if parent == root or parent in self._pages:
                self._pages[prefix] = Block(prefix, parent, array("i", event.page))
        elif event.kind == "page_removed":
            self._pages.pop(prefix, None)
        else:
            place = parent if event.tokens % PAGE_TOKENS else prefix
            if place in self._pages:
                stored = event.kind == "checkpoint_stored"
                return self._announce(place, root) if stored else self._withdraw(place, root)
        return ()

    def _announce(self, place: bytes, root: bytes) -> Iterable[Change]:
        chain: list[Block] = []
        while place != root:
            worth = self._worth.get(place, 0)
            self._worth[place] = worth + 1
            if worth:
                break
            chain.append(self._pages[place])
            place = chain[-1].parent
        if chain:
            parent = None if place == root else place
            yield Announced(parent, tuple(reversed(chain)), root)

    def _withdraw(self, place: bytes, root: bytes) -> Iterable[Change]:
        gone: list[bytes] = []
        while place != root:
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
