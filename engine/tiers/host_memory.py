"""The host tier: its size, its allocation below the arena, and its pinning for a GPU.

Pinning takes as long as the kernel needs to find the OS pages. So it goes segment by segment, logs
its progress, and has a time limit.
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
"""Fraction of the available memory used by host_cache_gib=auto. The rest is for the page cache and
for other processes."""
_FEWEST_SLABS = 2
"""Fewest slabs (fixed-size parts) of a host tier: one for a state and one for pages."""


_OF_ONE_RANK = ArenaKey(Place.HOST)


def host_arena(config: EngineConfig, layout: CacheLayout) -> Arena | None:
    """Allocate the host tier's memory and return it as an arena; None if the config has none.
    layout: the layout of one rank. Raises EngineConfigError like host_slabs()."""
    if config.host_cache_gib is None:
        return None
    slabs = host_slabs(config, layout, available_bytes())
    size = slabs * layout.slab_bytes * config.tensor_parallel
    log.info("%.2f GiB of host memory below the arena, %d slabs", size / GIB, slabs)
    return arena_below(layout, slabs, config.device)


def arena_below(
    layout: CacheLayout, slabs: int, device: str, key: ArenaKey = _OF_ONE_RANK
) -> Arena:
    """Allocate host memory for a tier below an arena on `device`; pinned if the device is a GPU.
    Raises EngineConfigError."""
    if device == "cpu":
        return Arena(layout, slabs, key=key)

    return Arena(layout, slabs, key=key, memory=pinned(layout, slabs))


def host_slabs(config: EngineConfig, layout: CacheLayout, available: int) -> int:
    """Return the number of the host tier's slabs for one rank; `auto` takes a fixed part of
    `available`. available: available bytes of memory. Raises EngineConfigError if the configured
    size is too small or not available. REQUIRES: the config has a host cache."""
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
    """Return the bytes of unused memory, limited by the system and by this process's control group.
    meminfo, group: files of the one and the other."""
    found = _machine_bytes(meminfo)
    try:
        limit, used = (
            (group / name).read_text(encoding="ascii").strip()
            for name in ("memory.max", "memory.current")
        )
        if limit != "max":
            found = min(found, max(0, int(limit) - int(used)))
    except (OSError, ValueError):
        # The process has no control group of its own, or one of the older kind.
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


_SEGMENT_BYTES = GIB
_PAGE = mmap.PAGESIZE
_SAID_SECONDS = 10.0
MOST_SECONDS = 900.0
"""Longest seconds of pinning before the node gives its start up. A terabyte takes five minutes."""


class Pinning(Protocol):
    def pin(self, address: int, size: int) -> None:
        """Pin `size` bytes of host memory from `address` on. Raises RuntimeError."""

    def let_go(self, address: int) -> None:
        """Unpin the memory region starting at `address`."""


class CudaPinning:
    """Pinning for every GPU of the process."""

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
    """An anonymous memory map. It unpins its pinned regions before it is freed."""

    pinning: Pinning
    pinned: list[int]

    @staticmethod
    def of(size: int, pinning: Pinning | None) -> "_PinnedMap":
        """Map `size` bytes, not pinned yet. pinning: CUDA's if None. Raises OSError."""
        memory = _PinnedMap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.pinning, memory.pinned = pinning or CudaPinning(), []
        # Huge pages mean fewer page faults and fewer lookups during copies. Without DONTFORK, a
        # fork would make the system copy memory that a device reads.
        memory.madvise(mmap.MADV_HUGEPAGE)
        memory.madvise(mmap.MADV_DONTFORK)
        return memory

    def pin(self, address: int, size: int) -> None:
        """Pin `size` bytes from `address` on, until the map is freed. Raises RuntimeError."""
        self.pinning.pin(address, size)
        self.pinned.append(address)

    def __del__(self) -> None:
        for address in self.pinned:
            self.pinning.let_go(address)


def pinned(
    layout: CacheLayout, slabs: int, pinning: Pinning | None = None, clock: Clock = time.monotonic
) -> torch.Tensor:
    """Return pinned zeros, uint8 [slabs * slab_bytes]. No slab crosses the border of two pinned
    regions, because a copy may not. pinning: CUDA's if None. Raises EngineConfigError if the memory
    is not available, or not within MOST_SECONDS."""
    size, segment = slabs * layout.slab_bytes, segment_bytes(layout)
    try:
        memory = _PinnedMap.of(size, pinning)
    except OSError as error:
        raise EngineConfigError(
            f"host_cache_gib: {size / GIB:.2f} GiB cannot be had ({error}): give less"
        ) from error
    found = torch.frombuffer(memory, dtype=torch.uint8)
    began = said = clock()
    for first in range(0, size, segment):
        length = min(segment, size - first)
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
    """Return a buffer of pinned zeros, uint8 [size], aligned to an OS page. A disk reads into it
    directly, and a GPU copies from it. Raises EngineConfigError."""
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


def segment_bytes(layout: CacheLayout) -> int:
    """Return the bytes pinned by one call: a multiple of the slab size and of the OS page size."""
    slabs = _PAGE // gcd(layout.slab_bytes, _PAGE)
    unit = slabs * layout.slab_bytes
    return max(1, _SEGMENT_BYTES // unit) * unit
