"""How much of a remote store a node knows at a time, and that it returns what is put there."""

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tasuki.engine.config import EngineConfig, EngineConfigError
from tasuki.engine.tiers.store.contract_name import contract_digest, folder_of
from tasuki.engine.tiers.store.within import within
from tasuki.pycache.layout import CacheLayout

from .bucket import Bucket, open_bucket
from .credentials import read_credentials
from .lookups import Lookups
from .remote_failed import RemoteFailed
from .remote_objects import RemoteObjects

log = logging.getLogger(__name__)

GIB = 2**30
_FEWEST_SLABS = 2
_START_SECONDS = 30.0
_PROBE_BYTES = 64 << 10


@dataclass(frozen=True)
class RemoteMemory:
    """slabs: that the tree has ids for. pages_a_second: that may be written in the long run; None:
    any number."""

    objects: RemoteObjects
    lookups: Lookups
    slabs: int
    pages_a_second: float | None = None

    @property
    def counters(self) -> dict[str, int]:
        return {**self.objects.counters, **self.lookups.counters}

    def close(self) -> None:
        """REQUIRES: no copier has it any more."""
        self.lookups.close()
        self.objects.close()


def remote_memory(
    config: EngineConfig, layout: CacheLayout, contract: Callable[[], Mapping[str, str]]
) -> RemoteMemory | None:
    """None where the config asks for none. contract: what must be equal before bytes are used that
    another node wrote. Raises EngineConfigError where the store cannot be used."""
    if config.remote_cache is None or config.remote_cache_gib is None:
        return None
    slabs = int(config.remote_cache_gib * GIB) // layout.slab_bytes
    if slabs < _FEWEST_SLABS:
        least = _FEWEST_SLABS * layout.slab_bytes / GIB
        raise EngineConfigError(
            f"remote_cache_gib {config.remote_cache_gib} is {slabs} slabs; give at least "
            f"{least:.3g}"
        )
    folder = folder_of(contract_digest(contract()))
    late = RemoteFailed(f"it took longer than {_START_SECONDS:g} s to be tried")
    try:
        credentials = read_credentials(config.remote_credentials)
        bucket = open_bucket(config.remote_cache, config.remote_endpoint, folder, credentials)
        objects = within(_START_SECONDS, lambda: _opened(bucket, layout), late)
    except RemoteFailed as error:
        raise EngineConfigError(
            f"remote_cache {config.remote_cache}: {error}; mend that, or leave remote_cache out"
        ) from error
    budget = config.remote_write_budget
    log.info(
        "up to %.2f GiB of %s, folder %s, below this node's own tiers",
        *(config.remote_cache_gib, config.remote_cache, folder),
    )
    return RemoteMemory(
        objects,
        Lookups(bucket, objects),
        slabs,
        None if budget is None else budget * 1e6 / layout.page_bytes,
    )


def _opened(bucket: Bucket, layout: CacheLayout) -> RemoteObjects:
    probe(bucket)
    return RemoteObjects(bucket, layout)


def probe(bucket: Bucket) -> None:
    """Write an object, read it back, remove it. Raises RemoteFailed."""
    name, content = f"probe/{secrets.token_hex(8)}", secrets.token_bytes(_PROBE_BYTES)
    bucket.put(name, content)
    listed = [each.name for each in bucket.names("probe/")]
    if bucket.get(name, _PROBE_BYTES) != content or not any(each.endswith(name) for each in listed):
        raise RemoteFailed("what it returns is not what was put there")
    bucket.delete(name)
