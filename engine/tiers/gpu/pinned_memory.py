"""Host memory that a GPU copies to and from by itself: taken and pinned at the start.

Pinning takes as long as the kernel needs to find the pages, so it goes by pieces, is said in the
log while it lasts, and is bounded.
"""

import logging
import mmap
import time
from math import gcd
from typing import Protocol

import torch

from tasuki.engine.config import EngineConfigError
from tasuki.pycache.layout import CacheLayout
from tasuki.utils.signatures import Clock

log = logging.getLogger(__name__)

GIB = 2**30
_PIECE_BYTES = GIB
_PAGE = mmap.PAGESIZE
_SAID_SECONDS = 10.0
MOST_SECONDS = 900.0
"""Before the start is given up: a terabyte takes about five minutes."""


class Pinning(Protocol):
    def pin(self, address: int, size: int) -> None:
        """Raises RuntimeError."""

    def let_go(self, address: int) -> None:
        """Of what was pinned from there on."""


class CudaPinning:
    """For every GPU of the process."""

    _PORTABLE = 1

    def pin(self, address: int, size: int) -> None:
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        error = int(cudart.cudaHostRegister(address, size, self._PORTABLE))
        if error:
            raise RuntimeError(f"cudaHostRegister failed with error {error}")

    def let_go(self, address: int) -> None:
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        cudart.cudaHostUnregister(address)


class _PinnedMap(mmap.mmap):
    """Lets go of what was pinned of it before the memory goes."""

    pinning: Pinning
    pinned: list[int]

    @staticmethod
    def of(size: int, pinning: Pinning | None) -> "_PinnedMap":
        """Nothing of it is pinned yet. Raises OSError."""
        memory = _PinnedMap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.pinning, memory.pinned = pinning or CudaPinning(), []
        # Fewer pages to be found, and to be looked up while bytes move; and a process that is
        # forked off does not make the system copy what a device reads.
        memory.madvise(mmap.MADV_HUGEPAGE)
        memory.madvise(mmap.MADV_DONTFORK)
        return memory

    def pin(self, address: int, size: int) -> None:
        """Raises RuntimeError."""
        self.pinning.pin(address, size)
        self.pinned.append(address)

    def __del__(self) -> None:
        for address in self.pinned:
            self.pinning.let_go(address)


def pinned(
    layout: CacheLayout,
    slabs: int,
    pinning: Pinning | None = None,
    clock: Clock = time.monotonic,
) -> torch.Tensor:
    """Zeros, uint8 [slabs * slab_bytes]. No slab is in two pieces that were pinned apart, for a
    copy may not cross these. pinning: CUDA's by default. Raises EngineConfigError where the memory
    cannot be had, or not in time."""
    size, piece = slabs * layout.slab_bytes, piece_bytes(layout)
    try:
        memory = _PinnedMap.of(size, pinning)
    except OSError as error:
        raise EngineConfigError(
            f"host_cache_gib: {size / GIB:.2f} GiB cannot be had ({error}): give less"
        ) from error
    found = torch.frombuffer(memory, dtype=torch.uint8)
    began = said = clock()
    for first in range(0, size, piece):
        length = min(piece, size - first)
        try:
            memory.pin(found.data_ptr() + first, length)
        except RuntimeError as error:
            raise EngineConfigError(
                f"host_cache_gib: {first / GIB:.2f} of {size / GIB:.2f} GiB could be pinned "
                f"({error}): give less, or raise the memory limit of this process's control group"
            ) from error
        now = clock()
        if now - began > MOST_SECONDS:
            raise EngineConfigError(
                f"host_cache_gib: {(first + length) / GIB:.2f} of {size / GIB:.2f} GiB were pinned "
                f"in {MOST_SECONDS:g} s: give less"
            )
        if now - said > _SAID_SECONDS:
            said = now
            log.info("%.0f of %.0f GiB of host memory pinned", (first + length) / GIB, size / GIB)
    log.info("%.2f GiB of host memory pinned in %.1f s", size / GIB, clock() - began)
    return found


def pinned_passage(size: int, pinning: Pinning | None = None) -> torch.Tensor:
    """Zeros, uint8 [size], from a page of the system's on: a disk reads into them by itself, and a
    GPU copies from them. Raises EngineConfigError."""
    try:
        memory = _PinnedMap.of(size, pinning)
        found = torch.frombuffer(memory, dtype=torch.uint8)
        memory.pin(found.data_ptr(), size)
    except (OSError, RuntimeError) as error:
        raise EngineConfigError(
            f"{size / 2**20:.0f} MiB that a GPU loads through from a disk or a remote store could "
            f"not be pinned ({error}): raise the memory limit of this process's control group, or "
            "leave disk_cache and remote_cache out"
        ) from error
    return found


def piece_bytes(layout: CacheLayout) -> int:
    """Of whole slabs and whole pages of the system's."""
    slabs = _PAGE // gcd(layout.slab_bytes, _PAGE)
    unit = slabs * layout.slab_bytes
    return max(1, _PIECE_BYTES // unit) * unit
