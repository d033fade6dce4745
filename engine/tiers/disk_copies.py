"""`PieceCopies` of a file below host memory: down from there, up to the arena."""

import numpy as np
from numpy.typing import NDArray

from tasuki.pycache.arena import Arena
from tasuki.pycache.place_copies import PagePairs
from tasuki.transfer.windows.digest import Digester

from .digests import ArenaDigests, TierDigests
from .disk_file import DiskFile


class DiskCopies:
    """An arena in host memory, above them all."""

    def __init__(
        self, arena: Arena, above: Arena, written: TierDigests, file: DiskFile, digester: Digester
    ) -> None:
        """above: host memory, and what it was written with. digester: of the arena."""
        self._arena = arena
        self._above = above
        self._written = written
        self._file = file
        self._digests = ArenaDigests(digester, len(arena.layout.layer_kinds))

    def pages_down(self, pages: PagePairs) -> list[int]:
        # As the arena had them: what host memory has by now is not asked.
        digests = [self._written.pages[page] for page, _ in pages]
        for source, target in pages:
            blocks = _page(self._above, source)
            self._file.page.reshape(blocks.shape)[:] = blocks
            self._file.write_page(target)
        return digests

    def pages_up(self, pages: PagePairs) -> list[int]:
        for source, target in pages:
            self._file.read_page(source)
            blocks = _page(self._arena, target)
            blocks[:] = self._file.page.reshape(blocks.shape)
        return self._digests.of_pages([page for _, page in pages])

    def slot_down(self, slot: tuple[int, int]) -> int:
        digest = self._written.slots[slot[0]]
        self._file.slot[:] = _slot(self._above, slot[0])
        self._file.write_slot(slot[1])
        return digest

    def slot_up(self, slot: tuple[int, int]) -> int:
        self._file.read_slot(slot[0])
        _slot(self._arena, slot[1])[:] = self._file.slot
        return self._digests.of_slot(slot[1])


def _page(arena: Arena, page: int) -> NDArray[np.uint8]:
    """[regions, bytes of a block], a view."""
    layout = arena.layout
    blocks: NDArray[np.uint8] = arena.bytes.numpy().reshape(-1, layout.block_bytes)
    step = layout.pages_per_slab
    return blocks[page : page + len(layout.regions) * step : step]


def _slot(arena: Arena, slot: int) -> NDArray[np.uint8]:
    """[bytes of a slot], a view."""
    start = slot * arena.layout.slab_bytes
    memory: NDArray[np.uint8] = arena.bytes.numpy()
    return memory[start : start + arena.layout.slot_bytes]
