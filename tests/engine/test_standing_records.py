"""A slab of a kept disk holds pages or a slot: taking one of them takes the other's record."""

from collections.abc import Sequence

import numpy as np
import pytest

from scripts.chaos.tier_turns import LAYOUT
from tasuki.engine.tiers.disk.kept_index import DIGEST_BYTES, Kept, Standing, Taken
from tasuki.pycache.layout import PAGE_TOKENS

SLABS = 8
PER_SLAB = LAYOUT.pages_per_slab
STRIDE = LAYOUT.blocks_per_slab
SLOT = 5
"""The slab of the state kept by every test."""


def ids(values: Sequence[int]) -> bytes:
    return np.array(values, "<i4").tobytes()


def kept(pages: Sequence[int], slot: int) -> Kept:
    """Return the record of a whole prompt on these pages, with its state in slot `slot`."""
    tokens = ids(range(len(pages) * PAGE_TOKENS))
    digests = bytes(len(pages) * DIGEST_BYTES)
    return Kept(b"", 0, None, tokens, "end", ids(pages), digests, slot, bytes(DIGEST_BYTES))


def slots_of(standing: Standing) -> list[int]:
    return [path.slot for path in standing.paths() if path is not None]


@pytest.mark.parametrize("place", range(PER_SLAB))
def test_standing_after_a_page_of_a_slots_slab_is_taken_has_no_such_slot(place: int) -> None:
    standing = Standing(LAYOUT, SLABS)
    standing.add(1, kept([0], SLOT))
    assert slots_of(standing) == [SLOT]
    standing.add(2, Taken(ids([SLOT * STRIDE + place]), b""))
    assert slots_of(standing) == []
    _, slots = standing.digests()
    assert slots == {}, "a digest of a slot that pages took"
    assert standing.kept_of() == b""
    assert SLOT in np.frombuffer(standing.overtaken().slots, np.int32)


@pytest.mark.parametrize("place", range(PER_SLAB))
def test_standing_after_a_page_of_a_slots_slab_is_kept_has_the_new_state_alone(place: int) -> None:
    standing = Standing(LAYOUT, SLABS)
    standing.add(1, kept([0], SLOT))
    standing.add(2, kept([SLOT * STRIDE + place], SLOT + 1))
    assert slots_of(standing) == [SLOT + 1]


@pytest.mark.parametrize("slab", [slab for slab in range(1, SLABS) if slab != SLOT])
def test_standing_after_a_page_of_another_slab_is_taken_has_the_slot_still(slab: int) -> None:
    standing = Standing(LAYOUT, SLABS)
    standing.add(1, kept([0], SLOT))
    standing.add(2, Taken(ids([slab * STRIDE]), b""))
    assert slots_of(standing) == [SLOT]


def test_standing_after_a_slot_of_a_pages_slab_is_taken_has_no_page_of_it() -> None:
    standing = Standing(LAYOUT, SLABS)
    pages = [2 * STRIDE + place for place in range(PER_SLAB)]
    standing.add(1, kept(pages, SLOT))
    standing.add(2, Taken(b"", ids([2])))
    assert standing.page_records() == {} and slots_of(standing) == []
