"""Names of weights in the tree: nothing of other weights is found, by prompts, cursors, nodes or
names, and nothing is lost when weights come back."""

import hashlib

import numpy as np
import pytest

from tasuki.pycache._cpp_cache import CheckpointKind, InvalidArgument, prefix_hashes
from tasuki.pycache.keys import Keys
from tasuki.pycache.packed import pack_events
from tasuki.pycache.prefix_cache import HybridPrefixCache
from tasuki.pycache.weights_namespace import MARK, START, WeightsNamespace, names_weights
from tests.harness.engines import tiny_parts

PROMPT = Keys(np.arange(200, dtype=np.int32))
NEXT = Keys(np.arange(300, dtype=np.int32))
SECOND, THIRD = (
    WeightsNamespace.of(hashlib.sha256(name).hexdigest()) for name in (b"second", b"third")
)
SALTS = [b"", b"\0tasuki tenant\0" + bytes(32)]


@pytest.fixture
def cache() -> HybridPrefixCache:
    return HybridPrefixCache(tiny_parts(slabs=24).arena)


def keep(cache: HybridPrefixCache, salt: bytes, cursor: int | None = None) -> None:
    """Insert the state after PROMPT."""
    allocation = cache.allocate(
        PROMPT, salt=salt, capacity_tokens=200, working_slots=1, cursor=cursor
    )
    assert allocation is not None
    cache.insert(allocation, 200, allocation.working_slots[0], CheckpointKind.TURN_END)
    cache.release(allocation)


def usable(cache: HybridPrefixCache, salt: bytes, cursor: int | None = None) -> int:
    return cache.match(NEXT, salt, cursor).usable_tokens


@pytest.mark.parametrize("salt", SALTS)
def test_a_state_is_found_under_its_own_weights_alone(
    cache: HybridPrefixCache, salt: bytes
) -> None:
    keep(cache, salt)
    for weights in (SECOND, THIRD):
        cache.change_weights(weights)
        assert usable(cache, salt) == 0
        assert cache.node_at(PROMPT, salt) is None
        assert cache.allocate_to_send(NEXT, salt=salt) is None
        keep(cache, salt)
        assert usable(cache, salt) == 200
    for weights in (START, SECOND):
        cache.change_weights(weights)
        assert usable(cache, salt) == 200


def test_states_of_other_weights_are_handed_to_nobody(cache: HybridPrefixCache) -> None:
    keep(cache, b"salt")
    (old,) = cache.most_valuable(2)
    assert cache.path_to(old) is not None
    cache.change_weights(SECOND)
    assert cache.path_to(old) is None
    keep(cache, b"salt")
    paths = [cache.path_to(state) for state in cache.most_valuable(2)]
    (path,) = [path for path in paths if path is not None]
    assert path[0] == b"salt" and (path[1] == PROMPT).all()


def test_a_cursor_stays_open_and_leads_to_no_other_weights(cache: HybridPrefixCache) -> None:
    cursor = cache.open_cursor(b"salt")
    keep(cache, b"salt", cursor)
    twin = cache.fork_cursor(cursor)
    assert usable(cache, b"salt", cursor) == usable(cache, b"salt", twin) == 200
    cache.change_weights(SECOND)
    assert usable(cache, b"salt", cursor) == usable(cache, b"salt", twin) == 0
    keep(cache, b"salt", twin)
    assert usable(cache, b"salt", twin) == 200
    with pytest.raises(InvalidArgument, match="another salt"):
        usable(cache, b"other", cursor)
    for each in (cursor, twin, cache.fork_cursor(cursor), cache.open_cursor(b"salt")):
        cache.close_cursor(each)
        with pytest.raises(InvalidArgument, match="is not open"):
            usable(cache, b"salt", each)
    cache.check_integrity()


def test_an_allocation_inserts_below_the_weights_it_began_with(cache: HybridPrefixCache) -> None:
    allocation = cache.allocate(PROMPT, salt=b"", capacity_tokens=200, working_slots=1)
    assert allocation is not None
    cache.change_weights(SECOND)
    cache.insert(allocation, 200, allocation.working_slots[0], CheckpointKind.TURN_END)
    cache.release(allocation)
    assert usable(cache, b"") == 0
    cache.change_weights(START)
    assert usable(cache, b"") == 200


def test_events_name_prefixes_of_updated_weights_apart(cache: HybridPrefixCache) -> None:
    watch = cache.watch()
    cache.drain_events(watch)
    for weights in (START, SECOND):
        cache.change_weights(weights)
        keep(cache, b"salt")
        stored = {event.prefix for event in pack_events(cache.drain_events(watch))}
        assert prefix_hashes(PROMPT, weights.salted(b"salt"))[-1] in stored
        assert (prefix_hashes(PROMPT, b"salt")[-1] in stored) is (weights is START)


def test_salts_of_weights_are_read_back() -> None:
    for weights in (START, SECOND, THIRD):
        for salt in SALTS:
            for other in (START, SECOND, THIRD):
                found = other.client_salt(weights.salted(salt))
                assert found == (salt if other == weights else None)
    assert names_weights(SECOND.salted(b"")) and not names_weights(b"\0tasuki")
    assert SECOND.prefix.startswith(MARK) and SECOND != THIRD
