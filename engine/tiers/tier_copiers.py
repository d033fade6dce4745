"""Who copies to and from each tier below an arena."""

from tasuki.pycache.arena import Arena

from .copy_thread import CopyThread
from .disk_copies import DiskCopies
from .disk_memory import DiskMemory
from .piece_copies import HostCopies, PieceCopies


def copiers(arena: Arena, host: Arena, disk: DiskMemory | None) -> list[CopyThread]:
    """A thread a tier, the nearest first: a slow disk holds up no copy of host memory."""
    first = CopyThread(host_copies(arena, host), arena.layout.page_bytes)
    return [first] if disk is None else [first, disk_copier(arena, host, first, disk)]


def host_copies(arena: Arena, host: Arena) -> PieceCopies:
    """REQUIRES: on a GPU, host is arena_below()."""
    if arena.bytes.device.type == "cpu":
        return HostCopies(arena, host)
    from .gpu.gpu_copies import GpuCopies

    return GpuCopies(arena, host)


def disk_copier(arena: Arena, host: Arena, above: CopyThread, disk: DiskMemory) -> CopyThread:
    """above: who copies to host memory. Knows what the disk has from before."""
    pieces = DiskCopies(arena, host, above.written, disk.file)
    copier = CopyThread(pieces, arena.layout.page_bytes, "disk", journal=disk.index)
    if disk.index.standing is not None:
        pages, slots = disk.index.standing.digests()
        copier.written.pages.update(pages)
        copier.written.slots.update(slots)
    return copier
