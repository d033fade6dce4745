"""Keys of pictures: digests, their numbers, and prompts told apart in tree, events and names."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tasuki.pycache._cpp_cache import CheckpointKind, prefix_hashes
from tasuki.pycache.arena import Arena
from tasuki.pycache.keys import (
    KeyedRun,
    Keys,
    KeySource,
    PictureDigest,
    PictureSource,
    PromptTokens,
    has_pictures,
    picture_keys,
    prompt_keys,
    same_tokens,
)
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.pycache.prefix_cache import HybridPrefixCache
from tests.harness.engines import tiny_parts

SOURCE = PictureSource("image", "exif", (b"a" * 32,), 150, 30, "16 x 2 x 2")
OPENING, PAD, END = 100, 101, 102


def prompt(before: int, pads: int, behind: int) -> PromptTokens:
    text = [at % 90 for at in range(before - 1)]
    tokens = [*text, OPENING, *[PAD] * pads, END, *[7] * behind]
    return PromptTokens(np.array(tokens, dtype=np.int32))


def keyed(name: str, before: int = 40, pads: int = 200, behind: int = 60) -> Keys:
    digest = replace(SOURCE, media=(name.encode().ljust(32),)).digest
    return prompt_keys(prompt(before, pads, behind), [KeyedRun(before, pads, digest)])


def test_a_digest_changes_with_each_field() -> None:
    others = [
        replace(SOURCE, kind="video"),
        replace(SOURCE, orientation="none"),
        replace(SOURCE, media=(b"b" * 32,)),
        replace(SOURCE, media=(b"a" * 32, b"a" * 32)),
        # 30 x 150 and 150 x 30 have equal bytes.
        replace(SOURCE, height=30, width=150),
        replace(SOURCE, constants="14 x 2 x 2"),
        # The same text, cut elsewhere.
        replace(SOURCE, kind="imag", orientation="eexif"),
        replace(SOURCE, media=(b"a" * 31,)),
    ]
    digests = {one.digest for one in (SOURCE, *others)}
    assert len(digests) == 1 + len(others)
    assert all(len(digest) == 32 for digest in digests)
    assert replace(SOURCE).digest == SOURCE.digest


def test_the_digest_and_its_keys_are_those_of_version_1() -> None:
    """Stored prefixes outlive a process, so their names must not change unnoticed."""
    assert SOURCE.digest.hex() == (
        "dbd3d33be47e69c2ca6187e7fef5a379e1880d6c0e10706efa8a8f20538a4236"
    )
    assert picture_keys(SOURCE.digest, 3).tolist() == [-770696806, -1703025112, -22521315]


@settings(max_examples=50)
@given(st.integers(0, 100), st.integers(0, 100), st.binary(min_size=32, max_size=32))
def test_keys_are_negative_and_their_first_ones_are_the_same(
    few: int, more: int, digest: bytes
) -> None:
    few, more = sorted((few, more))
    named = PictureDigest(digest)
    keys = picture_keys(named, more)
    assert keys.dtype == np.int32 and keys.shape == (more,) and (keys < 0).all()
    assert np.array_equal(picture_keys(named, few), keys[:few])


def test_keys_spread_over_31_bits() -> None:
    keys = picture_keys(SOURCE.digest, 4096)
    assert len(set(keys.tolist())) == 4096
    share = (keys[:, None] >> np.arange(31) & 1).mean(axis=0)
    assert (abs(share - 0.5) < 0.05).all()


def test_a_text_prompt_has_its_tokens_as_keys() -> None:
    tokens = prompt(40, 3, 5)
    keys = prompt_keys(tokens, [])
    assert keys is tokens and same_tokens(keys) is tokens and not has_pictures(keys)


def test_only_the_opening_and_the_placeholders_are_keyed() -> None:
    tokens = prompt(40, 200, 60)
    before = tokens.copy()
    keys = keyed("a")
    assert np.array_equal(tokens, before)
    changed = (keys != tokens).nonzero()[0]
    assert changed.tolist() == list(range(39, 240))
    assert (keys[39:240] < 0).all() and has_pictures(keys)
    with pytest.raises(ValueError, match="send the pictures' places"):
        same_tokens(keys)


def a_cache() -> HybridPrefixCache:
    layout = tiny_parts(slabs=1).layout
    return HybridPrefixCache(Arena(layout, 64))


def store(cache: HybridPrefixCache, keys: Keys, salt: bytes = b"") -> None:
    """Publish all but the last key, with a state at each page's end and at the exact end."""
    allocation = cache.allocate(keys, salt=salt, capacity_tokens=len(keys), working_slots=1)
    assert allocation is not None
    for boundary in range(PAGE_TOKENS, len(keys) - 1, PAGE_TOKENS):
        slot = cache.take_checkpoint_slot(allocation)
        assert slot is not None
        cache.insert_midway(allocation, boundary, slot, CheckpointKind.BRANCH)
    cache.insert(allocation, len(keys) - 1, allocation.working_slots[0], CheckpointKind.TURN_END)
    cache.release(allocation)


def matched(cache: HybridPrefixCache, keys: Keys, salt: bytes = b"") -> int:
    return cache.match(keys, salt).kv_tokens


@pytest.mark.parametrize("before", [40, 64, 65, 100, 128])
def test_another_picture_behind_the_same_text_is_never_hit(before: int) -> None:
    cache = a_cache()
    first, second = (keyed(name, before) for name in "ab")
    store(cache, first)
    assert matched(cache, first) >= before + 200
    # Whole pages in front of the opening token are shared, nothing behind.
    assert matched(cache, second) == (before - 1) // PAGE_TOKENS * PAGE_TOKENS
    assert cache.match(second).usable_tokens < before


def test_the_same_picture_of_another_tenant_is_not_hit() -> None:
    cache = a_cache()
    store(cache, keyed("a"), b"one")
    assert matched(cache, keyed("a"), b"two") == 0
    assert matched(cache, keyed("a"), b"one") > 0


def test_text_placeholders_are_never_a_picture_s() -> None:
    cache = a_cache()
    store(cache, keyed("a"))
    assert matched(cache, Keys(prompt(40, 200, 60))) == 0


def test_events_and_prefix_hashes_tell_pictures_apart() -> None:
    names = [prefix_hashes(keyed(name)) for name in "abc"]
    # The run begins in the first page, so no page is shared.
    for one, other in combinations(names, 2):
        assert one[0] == other[0] and not set(one[1:]) & set(other[1:])
    assert prefix_hashes(keyed("a")) == names[0]


def collide_at_first_placeholder(digest: PictureDigest, count: int) -> NDArray[np.int32]:
    """Return the picture's keys with that of the first placeholder cut to nothing."""
    keys = picture_keys(digest, count)
    keys[1] = -1
    return keys


def without_keyed_opening(digest: PictureDigest, count: int) -> NDArray[np.int32]:
    """Return the same keys under a rule that leaves the opening token itself."""
    keys = collide_at_first_placeholder(digest, count)
    keys[0] = OPENING
    return keys


@pytest.mark.parametrize(
    ("source", "shared"), [(collide_at_first_placeholder, 0), (without_keyed_opening, 64)]
)
def test_the_keyed_opening_saves_first_keys_that_collide(source: KeySource, shared: int) -> None:
    """The first page ends right behind the first placeholder. Without the rule, the second picture
    hits the first one's page."""
    before = PAGE_TOKENS - 1
    tokens = prompt(before, 200, 60)
    first, second = (
        prompt_keys(tokens, [KeyedRun(before, 200, PictureDigest(name * 32))], source)
        for name in (b"a", b"b")
    )
    assert first[before] == second[before] == -1
    cache = a_cache()
    store(cache, first)
    assert matched(cache, second) == shared
