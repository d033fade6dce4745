"""Host memory below an engine's arena: its size, its allocation, and its pinning for a GPU.

Pinning takes as long as the kernel needs to find the pages, so it goes by pieces, is shown in the
log while it lasts, and is bounded.
"""

import logging
import mmap
import time
from math import gcd
from pathlib import Path
from typing import Protocol

import torch

from tasuki.engine.config import EngineConfig, EngineConfigError
from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import ArenaKey, CacheLayout, Place
from tasuki.utils.options import Auto
from tasuki.utils.signatures import Clock

log = logging.getLogger(__name__)

GIB = 2**30
_AUTO_PART = 0.5
"""Of what is available: the rest is for the page cache and for whoever else runs there."""
_FEWEST_SLABS = 2
"""A state and the pages of one prompt."""


_OF_ONE_RANK = ArenaKey(Place.HOST)


def host_arena(config: EngineConfig, layout: CacheLayout) -> Arena | None:
    """None where the config asks for none. layout: of one rank. Raises as host_slabs()."""
    if config.host_cache_gib is None:
        return None
    slabs = host_slabs(config, layout, available_bytes())
    size = slabs * layout.slab_bytes * config.tensor_parallel
    log.info("%.2f GiB of host memory below the arena, %d slabs", size / GIB, slabs)
    return arena_below(layout, slabs, config.device)


def arena_below(
    layout: CacheLayout, slabs: int, device: str, key: ArenaKey = _OF_ONE_RANK
) -> Arena:
    """Host memory below an arena on that device. Raises EngineConfigError."""
    if device == "cpu":
        return Arena(layout, slabs, key=key)

    return Arena(layout, slabs, key=key, memory=pinned(layout, slabs))


def host_slabs(config: EngineConfig, layout: CacheLayout, available: int) -> int:
    """available: bytes. Raises EngineConfigError where the config asks for too little, or for more
    than is available. REQUIRES: it asks for some."""
    asked = config.host_cache_gib
    assert asked is not None
    size = int(available * _AUTO_PART) if isinstance(asked, Auto) else int(asked * GIB)
    if size > available:
        raise EngineConfigError(
            f"host_cache_gib {asked:g} is more than the {available / GIB:.1f} GiB of memory that "
            "are available here: give less, or auto"
        )
    slabs = size // (layout.slab_bytes * config.tensor_parallel)
    if slabs < _FEWEST_SLABS:
        raise EngineConfigError(
            f"host_cache_gib {asked} holds {slabs} slabs of {layout.slab_bytes} bytes a rank; give "
            f"at least {_FEWEST_SLABS * layout.slab_bytes * config.tensor_parallel / GIB:.3g}"
        )
    return slabs


def available_bytes(
    meminfo: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")
) -> int:
    """Of memory that nobody uses, as far as the system and this process's control group say."""
    found = _machine_bytes(meminfo)
    try:
        limit, used = (
            (group / name).read_text(encoding="ascii").strip()
            for name in ("memory.max", "memory.current")
        )
        if limit != "max":
            found = min(found, max(0, int(limit) - int(used)))
    except (OSError, ValueError):
        # No group of its own, or one of the older kind.
        pass
    return found


def _machine_bytes(meminfo: Path) -> int:
    for line in meminfo.read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    raise EngineConfigError(
        f"{meminfo} does not say how much memory is available: leave host_cache_gib out"
    )


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
