"""Copies of a GPU's arena in segments of several sizes: the moved, digested and opened parts.
Without a GPU its streams are simulated as late."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tasuki.engine.tiers.copy_job import CopyJob, Direction
from tasuki.engine.tiers.digests import page_bytes, slot_bytes
from tasuki.engine.tiers.gpu import gpu_copies
from tasuki.engine.tiers.gpu import gpu_copies as gpu_copy
from tasuki.pycache.arena import Arena

from .late_streams import put_in_place
from .test_word_digest import LAYOUT
from .word_digest_twin import digest

SLABS = 6
STRIDE = LAYOUT.blocks_per_slab
PAGES = [1, 0, STRIDE, STRIDE + 1, 3 * STRIDE]
ELSEWHERE = [2 * STRIDE, 2 * STRIDE + 1, 3 * STRIDE, 0, 1]


@pytest.fixture(autouse=True)
def streams(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    if device.type == "cpu":
        put_in_place(monkeypatch)


@pytest.fixture
def arena(device: torch.device) -> Arena:
    arena = Arena(LAYOUT, SLABS, device)
    arena.bytes.copy_(torch.from_numpy(random_bytes(arena.size, 1)))
    return arena


@pytest.fixture
def below() -> Arena:
    memory = torch.from_numpy(random_bytes(SLABS * LAYOUT.slab_bytes, 2)).pin_memory()
    return Arena(LAYOUT, SLABS, memory=memory)


def random_bytes(size: int, seed: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def on_host(arena: Arena) -> Arena:
    """Return a copy of it on the host."""
    return Arena(LAYOUT, SLABS, memory=arena.bytes.cpu().clone())


@pytest.mark.parametrize("segment", [1, 3 * LAYOUT.block_bytes, 1 << 30])
@pytest.mark.parametrize("has_slot", [True, False])
def test_what_goes_down_comes_up_elsewhere_with_the_same_digests(
    arena: Arena, below: Arena, monkeypatch: pytest.MonkeyPatch, segment: int, has_slot: bool
) -> None:
    monkeypatch.setattr(gpu_copy, "_SEGMENT_BYTES", segment)
    monkeypatch.setattr(gpu_copy, "_UNDER_WAY", 2 * segment)
    copies = gpu_copies.GpuCopies(arena, below)
    before = on_host(arena)
    state = digest(slot_bytes(before, 5)) if has_slot else None
    expected = [digest(np.ascontiguousarray(page_bytes(before, page)).ravel()) for page in PAGES]
    pages = tuple(zip(PAGES, ELSEWHERE, strict=True))
    down = copies.down(CopyJob(1, Direction.DOWN, pages, (5, 5) if has_slot else None))
    assert layers_of(down)[-1] == len(LAYOUT.layers)
    assert down.digests() == (expected, state)
    down.settle()
    for source, target in pages:
        assert np.array_equal(page_bytes(before, source), page_bytes(below, target))
    back = tuple((target, source + 4 * STRIDE) for source, target in pages[:2])
    up = copies.up(CopyJob(2, Direction.UP, back, (5, 2) if has_slot else None))
    seen = layers_of(up)
    assert seen == sorted(seen) and seen[-1] == len(LAYOUT.layers)
    assert up.digests() == (expected[:2], state)
    up.settle()
    # Nothing else may change.
    for source, _ in pages[:2]:
        page_bytes(before, source + 4 * STRIDE)[:] = page_bytes(before, source)
    if has_slot:
        slot_bytes(before, 2)[:] = slot_bytes(before, 5)
    assert np.array_equal(on_host(arena).bytes.numpy(), before.bytes.numpy())


def layers_of(copy: gpu_copy.GpuCopy) -> list[int]:
    """Return the number of open layers after each segment."""
    seen = [copy.layers]
    while copy.advance():
        seen.append(copy.layers)
    return seen


def test_what_rotted_below_has_another_digest(arena: Arena, below: Arena) -> None:
    copies = gpu_copies.GpuCopies(arena, below)
    down = copies.down(CopyJob(1, Direction.DOWN, ((1, 1), (2, 2)), (4, 4)))
    layers_of(down)
    page_bytes(below, 2)[-1, -1] ^= 1
    up = copies.up(CopyJob(2, Direction.UP, ((1, 1), (2, 2)), (4, 4)))
    layers_of(up)
    (first, second), slot = up.digests()
    expected, state = down.digests()
    assert (first, slot) == (expected[0], state) and second != expected[1]
