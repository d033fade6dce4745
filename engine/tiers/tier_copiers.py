"""Who copies to and from each tier below an arena in host memory."""

from tasuki.pycache.arena import Arena
from tasuki.transfer.windows.digest import WindowDigester

from .copy_thread import CopyThread
from .disk_copies import DiskCopies
from .disk_file import DiskFile
from .piece_copies import HostCopies


def cpu_copiers(arena: Arena, host: Arena, disk: DiskFile | None) -> list[CopyThread]:
    """A thread a tier, the nearest first: a slow disk holds up no copy of host memory."""
    pieces = HostCopies(arena, host, WindowDigester(arena.bytes.numpy(), arena.layout))
    first = CopyThread(pieces, arena.layout.page_bytes)
    return [first] if disk is None else [first, disk_copier(arena, host, first, disk)]


def disk_copier(arena: Arena, host: Arena, above: CopyThread, disk: DiskFile) -> CopyThread:
    """above: who copies to host memory."""
    digester = WindowDigester(arena.bytes.numpy(), arena.layout)
    pieces = DiskCopies(arena, host, above.written, disk, digester)
    return CopyThread(pieces, arena.layout.page_bytes, "disk")
