"""What a disk kept stands in the tree of a node that starts."""

import logging
import time

from tasuki.pycache._cpp_cache import CheckpointKind
from tasuki.pycache.prefix_cache import HybridPrefixCache

from .kept_index import KeptIndex
from .standing import KeptPath

log = logging.getLogger(__name__)


def restore(cache: HybridPrefixCache, tier: int, index: KeptIndex) -> None:
    """Give the tree each state that is of use, once. REQUIRES: the cache has served nobody."""
    standing, index.standing = index.standing, None
    if standing is None:
        return
    began = time.monotonic()
    counters = index.counters
    for path in standing.paths():
        if path is not None and _stands(cache, tier, path):
            counters["restored"] += 1
        else:
            counters["lost"] += 1
    log.info(
        "%d states of before stand on the disk again, in %.1f s; of %d the path is not whole, or "
        "another has it",
        *(counters["restored"], time.monotonic() - began, counters["lost"]),
    )


def _stands(cache: HybridPrefixCache, tier: int, path: KeptPath) -> bool:
    try:
        kind = CheckpointKind(path.kind)
    except ValueError:
        return False
    return cache.restore(
        tier, path.tokens, salt=path.salt, pages=path.pages, slot=path.slot, kind=kind
    )
