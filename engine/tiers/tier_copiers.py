"""Who copies to and from each tier below an arena."""

from tasuki.pycache.arena import Arena

from .copy_thread import CopyThread
from .digests import DigestKind, TierDigests
from .disk.disk_memory import DiskMemory
from .piece_copies import HostCopies, PieceCopies
from .remote.remote_memory import RemoteMemory
from .store.store_copies import StoreCopies
from .store.store_loads import HostLoads, StoreLoads
from .store.tier_store import HostSource, TierSource, TierStore


def tier_copiers(
    arena: Arena, host: Arena, disk: DiskMemory | None, remote: RemoteMemory | None = None
) -> list[CopyThread]:
    """A thread a tier, the nearest first: a slow disk holds up no copy of host memory."""
    found = [CopyThread(host_copies(arena, host))]
    source: TierSource = HostSource(host)
    if disk is not None:
        found.append(disk_copier(arena, host, found[0], disk))
        source = disk.file
    if remote is not None:
        found.append(remote_copier(arena, source, found[-1].written, remote))
    return found


def host_copies(arena: Arena, host: Arena) -> PieceCopies:
    """REQUIRES: on a GPU, host is arena_below()."""
    match DigestKind.of(arena.bytes.device):
        case DigestKind.XXH3:
            return HostCopies(arena, host)
        case DigestKind.WORDS:
            from .gpu.gpu_copies import GpuCopies

            return GpuCopies(arena, host)


def store_copies(
    arena: Arena, above: TierSource, written: TierDigests, store: TierStore
) -> PieceCopies:
    """above, written: as of StoreCopies. Raises EngineConfigError."""
    return StoreCopies(arena.layout, above, written, store, _store_loads(arena, store))


def _store_loads(arena: Arena, store: TierSource) -> StoreLoads:
    match DigestKind.of(arena.bytes.device):
        case DigestKind.XXH3:
            return HostLoads(arena, store)
        case DigestKind.WORDS:
            from .gpu.gpu_loads import GpuLoads

            return GpuLoads(arena, store)


def disk_copier(arena: Arena, host: Arena, above: CopyThread, disk: DiskMemory) -> CopyThread:
    """above: who copies to host memory. Knows what the disk has from before."""
    pieces = store_copies(arena, HostSource(host), above.written, disk.file)
    copier = CopyThread(pieces, "disk", journal=disk.index)
    if disk.index.standing is not None:
        pages, slots = disk.index.standing.digests()
        copier.written.pages.update(pages)
        copier.written.slots.update(slots)
    return copier


def remote_copier(
    arena: Arena, above: TierSource, written: TierDigests, remote: RemoteMemory
) -> CopyThread:
    """above: the tier above the remote one, and what it was written with."""
    pieces = store_copies(arena, above, written, remote.objects)
    return CopyThread(pieces, "remote", journal=remote.objects)
