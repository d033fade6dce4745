"""How much of a disk a node keeps below its host memory, and that it reads back what it wrote."""

import logging
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tasuki.engine.config import EngineConfig, EngineConfigError
from tasuki.pycache.layout import CacheLayout

from .disk_file import DiskFailed, DiskFile, disk_slab_bytes

log = logging.getLogger(__name__)

GIB = 2**30
_FEWEST_SLABS = 2
_PROBE_SECONDS = 30.0


@dataclass(frozen=True)
class DiskMemory:
    """pages_a_second: that may be written in the long run; None: any number."""

    file: DiskFile
    pages_a_second: float | None = None


def disk_memory(config: EngineConfig, layout: CacheLayout) -> DiskMemory | None:
    """None where the config asks for none. Raises EngineConfigError where the disk has no room, or
    does not return what was written to it."""
    if config.disk_cache is None or config.disk_cache_gib is None:
        return None
    slabs = int(config.disk_cache_gib * GIB) // disk_slab_bytes(layout)
    if slabs < _FEWEST_SLABS:
        least = _FEWEST_SLABS * disk_slab_bytes(layout) / GIB
        raise EngineConfigError(
            f"disk_cache_gib {config.disk_cache_gib} holds {slabs} slabs; give at least {least:.3g}"
        )
    try:
        file = DiskFile(Path(config.disk_cache), layout, slabs)
        _probe_within(file, _PROBE_SECONDS)
    except DiskFailed as error:
        raise EngineConfigError(
            f"disk_cache {config.disk_cache}: {error}; give another folder, less disk_cache_gib, "
            "or leave them out"
        ) from error
    log.info("%.2f GiB in %s below host memory", config.disk_cache_gib, config.disk_cache)
    budget = config.disk_write_mb
    return DiskMemory(file, None if budget is None else budget * 1e6 / layout.page_bytes)


def _probe_within(file: DiskFile, seconds: float) -> None:
    """Raises DiskFailed. A disk that hangs, hangs a thread of nobody."""
    found: list[DiskFailed | None] = []

    def run() -> None:
        try:
            probe(file)
        except DiskFailed as error:
            found.append(error)
        else:
            found.append(None)

    thread = threading.Thread(target=run, name="tasuki-probe", daemon=True)
    thread.start()
    thread.join(seconds)
    if not found:
        raise DiskFailed(f"it took longer than {seconds:g} s to write and read two pieces")
    if found[0] is not None:
        raise found[0]


def probe(file: DiskFile) -> None:
    """Write the first and the last slab's slot and read them back. Raises DiskFailed."""
    random = np.random.default_rng()
    written = {}
    for slot in (0, file.slabs - 1):
        written[slot] = random.integers(0, 256, len(file.slot), dtype=np.uint8)
        file.slot[:] = written[slot]
        file.write_slot(slot)
    for slot, wanted in written.items():
        file.slot[:] = 0
        file.read_slot(slot)
        if not np.array_equal(file.slot, wanted):
            raise DiskFailed(f"slab {slot} is not what was written there")
