"""What a disk kept stands in the tree of a node that starts."""

import logging
import time
from collections.abc import Sequence

from tasuki.pycache._cpp_cache import CheckpointKind
from tasuki.pycache.prefix_cache import HybridPrefixCache

from .kept_index import KeptIndex
from .standing import KeptPath

log = logging.getLogger(__name__)


def restore(
    cache: HybridPrefixCache, tier: int, index: KeptIndex, others: Sequence[bytes] = ()
) -> None:
    """Give the tree each state that is of use, once. others: what other ranks kept, as of
    kept_of(): a state stands where all of them have it at the same places. REQUIRES: the cache has
    served nobody."""
    standing, index.standing = index.standing, None
    if standing is None:
        return
    began = time.monotonic()
    counters = index.counters
    everywhere = [_identities(kept) for kept in others]
    for path in standing.paths():
        if path is not None and _is_in(path, everywhere) and _stands(cache, tier, path):
            counters["restored"] += 1
        else:
            counters["lost"] += 1
    log.info(
        "%d states of before stand on the disk again, in %.1f s; of %d the path is not whole, or "
        "another has it",
        *(counters["restored"], time.monotonic() - began, counters["lost"]),
    )


def _identities(kept: bytes) -> frozenset[bytes]:
    return frozenset(kept[at : at + 16] for at in range(0, len(kept), 16))


def _is_in(path: KeptPath, everywhere: Sequence[frozenset[bytes]]) -> bool:
    return not everywhere or all(path.identity in kept for kept in everywhere)


def _stands(cache: HybridPrefixCache, tier: int, path: KeptPath) -> bool:
    try:
        kind = CheckpointKind(path.kind)
    except ValueError:
        return False
    return cache.restore(
        tier, path.tokens, salt=path.salt, pages=path.pages, slot=path.slot, kind=kind
    )
