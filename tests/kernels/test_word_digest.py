"""A GPU's digests of pages and slots equal the reference, at any place and with any order of
blocks. Every damage changes them."""

import numpy as np
import pytest
import torch

from tasuki.engine.tiers.digests import page_bytes, slot_bytes
from tasuki.engine.tiers.gpu.word_digest import (
    add_rows,
    digests_of,
    rows_of_pages,
    rows_of_state,
)
from tasuki.pycache.arena import Arena
from tests.harness.loopback_pair import FULL, GDN, small_layout
from tests.kernels.word_digest_twin import digest

LAYOUT = small_layout(
    (GDN, FULL, GDN, FULL),
    head_dim=32,
    kv_dtype="bfloat16",
    value_heads=3,
    value_dim=64,
    key_dim=64,
)
PAGES = (0, 1, LAYOUT.blocks_per_slab, 3 * LAYOUT.blocks_per_slab + 1)
SLOT = 2


@pytest.fixture
def arena() -> Arena:
    arena = Arena(LAYOUT, 5)
    random = np.random.default_rng(3)
    arena.bytes.numpy()[:] = random.integers(0, 256, arena.size, dtype=np.uint8)
    return arena


def digests(arena: Arena, device: torch.device, order: int = 1) -> list[int]:
    """Return the digests of PAGES, then of SLOT. Each launch has one region, the first or the last
    one first, or a part of the slot."""
    words = arena.bytes.to(device).view(torch.int64)
    half = LAYOUT.slot_bytes // 16 * 8
    tables = [rows_of_pages(LAYOUT, region.index, PAGES, 0) for region in LAYOUT.regions]
    tables.append(rows_of_state(LAYOUT, SLOT, 0, half, len(PAGES)))
    tables.append(rows_of_state(LAYOUT, SLOT, half, LAYOUT.slot_bytes - half, len(PAGES)))
    rows = torch.from_numpy(np.concatenate(tables, axis=1)).to(device)
    sums = torch.zeros(len(PAGES) + 1, 2, dtype=torch.int64, device=device)
    ends = np.cumsum([0, *(table.shape[1] for table in tables)])
    for number in range(len(tables))[::order]:
        add_rows(words, rows[:, ends[number] : ends[number + 1]], sums)
    add_rows(words, rows[:, :0], sums)
    return digests_of(sums.cpu().numpy())


@pytest.mark.parametrize("order", [1, -1])
def test_pages_and_a_slot_have_the_twin_s_digests(
    arena: Arena, device: torch.device, order: int
) -> None:
    expected = [digest(np.ascontiguousarray(page_bytes(arena, page)).ravel()) for page in PAGES]
    expected.append(digest(slot_bytes(arena, SLOT)))
    assert digests(arena, device, order) == expected


def test_what_lies_elsewhere_has_the_same_digest(arena: Arena, device: torch.device) -> None:
    page_bytes(arena, PAGES[3])[:] = page_bytes(arena, PAGES[0])
    found = digests(arena, device)
    assert found[3] == found[0] and len(set(found[:3])) == 3


@pytest.mark.parametrize("bit", [0, 7])
@pytest.mark.parametrize("at", [0, 7, -8, -1])
def test_every_bit_shows_of_the_first_and_the_last_word(
    arena: Arena, device: torch.device, at: int, bit: int
) -> None:
    before = digests(arena, device)
    page_bytes(arena, PAGES[1])[-1, at] ^= 1 << bit
    slot_bytes(arena, SLOT)[at] ^= 1 << bit
    after = digests(arena, device)
    same = [one == other for one, other in zip(before, after, strict=True)]
    assert same == [True, False, True, True, False]


def test_blocks_that_changed_places_and_top_bytes_of_many_words_show(
    arena: Arena, device: torch.device
) -> None:
    """Sums of words times keys miss one in 256 of the latter."""
    before = digests(arena, device)
    blocks = page_bytes(arena, PAGES[0])
    blocks[[0, 1]] = blocks[[1, 0]]
    assert digests(arena, device)[0] != before[0]
    for seed in range(64 if device.type == "cuda" else 8):
        tops = page_bytes(arena, PAGES[1])[0].reshape(-1, 8)[:, 7]
        tops[np.random.default_rng(seed).integers(0, len(tops), 40)] ^= 0x80
        assert digests(arena, device)[1] not in before
