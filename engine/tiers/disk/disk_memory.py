"""How much of a disk a node keeps below its host memory, that it reads back what it wrote, and what
is there from before."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tasuki.engine.config import AUTO_DTYPE, DTYPES, EngineConfig, EngineConfigError
from tasuki.engine.tiers.kept.disk_failed import DiskFailed
from tasuki.engine.tiers.kept.kept_folder import KeptFolder
from tasuki.engine.tiers.kept.kept_index import KeptIndex
from tasuki.engine.tiers.store.contract_name import contract_digest, folder_of
from tasuki.engine.tiers.store.rows import PassingRows
from tasuki.engine.tiers.store.within import within
from tasuki.pycache.layout import CacheLayout
from tasuki.transfer.protocol.contract import OF_DTYPE

from .disk_file import DiskFile, disk_slab_bytes

log = logging.getLogger(__name__)

GIB = 2**30
_FEWEST_SLABS = 2
_START_SECONDS = 60.0
"""To take the room, try the disk and read what is known of it, before it is given up."""


@dataclass(frozen=True)
class DiskMemory:
    """pages_a_second: that may be written in the long run; None: any number."""

    file: DiskFile
    index: KeptIndex
    pages_a_second: float | None = None

    @property
    def counters(self) -> dict[str, int]:
        return self.index.counters

    def close(self) -> None:
        """Another node may have it. REQUIRES: no copier has it any more."""
        self.file.close()
        self.index.close()


def disk_memory(
    config: EngineConfig, layout: CacheLayout, contract: Callable[[], Mapping[str, str]]
) -> DiskMemory | None:
    """None where the config asks for none. layout: of this rank, which takes its part of
    disk_cache_gib. contract: what must be equal before bytes are used that another node wrote, with
    the rank where there are several. Raises EngineConfigError where the disk has no room, does not
    return what was written to it, or is another's."""
    if config.disk_cache is None or config.disk_cache_gib is None:
        return None
    slab = disk_slab_bytes(layout) * config.tensor_parallel
    slabs = int(config.disk_cache_gib * GIB) // slab
    if slabs < _FEWEST_SLABS:
        least = _FEWEST_SLABS * slab / GIB
        raise EngineConfigError(
            f"disk_cache_gib {config.disk_cache_gib} holds {slabs} slabs; give at least {least:.3g}"
        )
    began = time.monotonic()
    parent, agreed = Path(config.disk_cache), contract()
    budget = config.disk_write_budget
    _refuse_other_dtype(config, parent, agreed)
    late = DiskFailed(f"it took longer than {_START_SECONDS:g} s to be tried and read")
    try:
        file, index = within(_START_SECONDS, lambda: _opened(parent, agreed, layout, slabs), late)
    except DiskFailed as error:
        raise EngineConfigError(
            f"disk_cache {config.disk_cache}: {error}; give another folder, less disk_cache_gib, "
            "or leave them out"
        ) from error
    log.info(
        "%.2f GiB in %s below host memory: %d records of before in %.1f s, %d torn, %d folders of "
        "other models are left alone",
        *(config.disk_cache_gib, config.disk_cache, index.found, time.monotonic() - began),
        *(index.counters["torn"], index.folder.others),
    )
    return DiskMemory(file, index, None if budget is None else budget * 1e6 / layout.page_bytes)


def _refuse_other_dtype(config: EngineConfig, parent: Path, agreed: Mapping[str, str]) -> None:
    """Raises EngineConfigError where nobody chose a dtype, and the folder holds what a node of this
    model kept in another one than auto comes to here: it would be of no use, silently."""
    if config.dtype != AUTO_DTYPE or (parent / folder_of(contract_digest(agreed))).exists():
        return
    for dtype in set(DTYPES) - {config.compute_dtype}:
        other = replace(config, dtype=dtype)
        theirs = {**agreed, "kv_dtype": other.stored_kv}
        theirs |= {field: dtype for field in OF_DTYPE if field in agreed}
        kept = parent / folder_of(contract_digest(theirs))
        if kept.exists():
            raise EngineConfigError(
                f"disk_cache {parent} holds what a node with --dtype {dtype} kept ({kept.name}), "
                f"and dtype auto is {config.compute_dtype} here: give --dtype {dtype} to use it, "
                f"--dtype {config.compute_dtype} to begin anew beside it, or another folder"
            )


def _opened(
    parent: Path, contract: Mapping[str, str], layout: CacheLayout, slabs: int
) -> tuple[DiskFile, KeptIndex]:
    folder = KeptFolder(parent, contract)
    try:
        file = DiskFile(folder, layout, slabs)
        probe(file)
        return file, KeptIndex(folder, layout, slabs)
    except DiskFailed:
        folder.close()
        raise


def probe(file: DiskFile) -> None:
    """Write the spare slab's slot and read it back. Raises DiskFailed."""
    row = PassingRows().rows(1, file.layout.slot_bytes)[0]
    written = np.random.default_rng().integers(0, 256, len(row), dtype=np.uint8)
    row[:] = written
    file.put_slot(file.slabs, row)
    row[:] = 0
    file.get_slot(file.slabs, row)
    if not np.array_equal(row, written):
        raise DiskFailed("what it returns is not what was written to it")
