"""The GPU's digest of a window equals the CPU's, bit for bit, and reads nothing else."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tasuki.transfer.windows.digest import WindowDigester
from tasuki.transfer.windows.digest_kernel import GpuWindowDigester
from tasuki.transfer.windows.window import WindowHeader

from tests.harness.loopback_pair import FULL, GDN, small_layout

LAYOUT = replace(
    small_layout((GDN, FULL, GDN, FULL)),
    head_dim=32,
    kv_dtype="bfloat16",
    conv_dtype="bfloat16",
    value_heads=3,
    value_dim=64,
    key_dim=64,
)
SLABS = 6


@pytest.mark.parametrize(
    ("header", "pages", "slot"),
    [
        (WindowHeader(0, 0, 4, 3, 3, True), (LAYOUT.blocks_per_slab, 1, 0), 5),
        (WindowHeader(1, 1, 2, 70_000, 1, False), (0,), None),
        (WindowHeader(2, 0, 1, 0, 0, True), (), 2),
        (WindowHeader(3, 0, 1, 0, 0, False), (), None),
    ],
)
def test_a_window_has_the_same_digest_on_both(
    header: WindowHeader, pages: tuple[int, ...], slot: int | None, device: torch.device
) -> None:
    memory = np.random.default_rng(7).integers(0, 256, SLABS * LAYOUT.slab_bytes, dtype=np.uint8)
    ours = GpuWindowDigester(torch.from_numpy(memory).to(device), LAYOUT)
    twin = WindowDigester(memory, LAYOUT)
    room, generation = 2**62 + 5, 9
    expected = twin.digest(room, generation, header, pages, slot)
    assert ours.digest(room, generation, header, pages, slot) == expected
    assert (expected == 0) == (not pages and slot is None)


def test_one_flipped_bit_anywhere_in_the_window_changes_it(device: torch.device) -> None:
    memory = np.random.default_rng(8).integers(0, 256, SLABS * LAYOUT.slab_bytes, dtype=np.uint8)
    header, pages, slot = WindowHeader(0, 0, 2, 0, 1, True), (1,), 4
    digest = GpuWindowDigester(torch.from_numpy(memory).to(device), LAYOUT).digest
    whole = digest(1, 1, header, pages, slot)
    page, state = LAYOUT.page_span(1, 1), LAYOUT.state_span(0, 4)
    for byte in (page.offset, page.offset + page.length - 1, state.offset + state.length - 1):
        flipped = memory.copy()
        flipped[byte] ^= 128
        other = GpuWindowDigester(torch.from_numpy(flipped).to(device), LAYOUT)
        assert other.digest(1, 1, header, pages, slot) != whole
    outside = memory.copy()
    outside[page.offset - 1] ^= 1
    untouched = GpuWindowDigester(torch.from_numpy(outside).to(device), LAYOUT)
    assert untouched.digest(1, 1, header, pages, slot) == whole
