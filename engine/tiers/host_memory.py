"""How much host memory a node keeps below its arena, and that memory."""

import logging
from pathlib import Path

from tasuki.engine.config import EngineConfig, EngineConfigError
from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import ArenaKey, CacheLayout, Place
from tasuki.utils.options import Auto

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
    from .gpu.pinned_memory import pinned

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
