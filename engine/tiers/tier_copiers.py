"""Who copies to and from each tier below an arena in host memory."""

from tasuki.pycache.arena import Arena

from .copy_thread import CopyThread
from .disk_copies import DiskCopies
from .disk_memory import DiskMemory
from .piece_copies import HostCopies


def cpu_copiers(arena: Arena, host: Arena, disk: DiskMemory | None) -> list[CopyThread]:
    """A thread a tier, the nearest first: a slow disk holds up no copy of host memory."""
    first = CopyThread(HostCopies(arena, host), arena.layout.page_bytes)
    return [first] if disk is None else [first, disk_copier(arena, host, first, disk)]


def disk_copier(arena: Arena, host: Arena, above: CopyThread, disk: DiskMemory) -> CopyThread:
    """above: who copies to host memory. Knows what the disk has from before."""
    pieces = DiskCopies(arena, host, above.written, disk.file)
    copier = CopyThread(pieces, arena.layout.page_bytes, "disk", journal=disk.index)
    if disk.index.standing is not None:
        pages, slots = disk.index.standing.digests()
        copier.written.pages.update(pages)
        copier.written.slots.update(slots)
    return copier
