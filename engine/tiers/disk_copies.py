"""`PieceCopies` of a file below host memory: down from there, up to the arena."""

from tasuki.pycache.arena import Arena
from tasuki.pycache.place_copies import PagePairs

from .copy_job import CopyJob
from .digests import ArenaDigests, TierDigests
from .disk_file import DiskFile
from .piece_copies import PIECE_BYTES
from .pieces import page_bytes, slot_bytes
from .up_copy import WholeCopy


class DiskCopies:
    """An arena in host memory, above them all."""

    piece_bytes = PIECE_BYTES

    def __init__(self, arena: Arena, above: Arena, written: TierDigests, file: DiskFile) -> None:
        """above: host memory, and what it was written with."""
        self._arena = arena
        self._above = above
        self._written = written
        self._file = file
        self._digests = ArenaDigests(arena)

    def pages_down(self, pages: PagePairs) -> list[int]:
        # As the arena had them: what host memory has by now is not asked.
        digests = [self._written.pages[page] for page, _ in pages]
        for source, target in pages:
            blocks = page_bytes(self._above, source)
            self._file.page.reshape(blocks.shape)[:] = blocks
            self._file.write_page(target)
        return digests

    def up(self, job: CopyJob) -> WholeCopy:
        return WholeCopy(self, job, max(1, PIECE_BYTES // self._arena.layout.page_bytes))

    def pages_up(self, pages: PagePairs) -> list[int]:
        for source, target in pages:
            self._file.read_page(source)
            blocks = page_bytes(self._arena, target)
            blocks[:] = self._file.page.reshape(blocks.shape)
        return self._digests.of_pages([page for _, page in pages])

    def slot_down(self, slot: tuple[int, int]) -> int:
        digest = self._written.slots[slot[0]]
        self._file.slot[:] = slot_bytes(self._above, slot[0])
        self._file.write_slot(slot[1])
        return digest

    def slot_up(self, slot: tuple[int, int]) -> int:
        self._file.read_slot(slot[0])
        slot_bytes(self._arena, slot[1])[:] = self._file.slot
        return self._digests.of_slot(slot[1])
