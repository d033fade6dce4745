"""Segments as numbered units: each number leads back to its segment's bytes, on both sides."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasuki.transfer.chunks.chunk import ChunkHeader
from tasuki.transfer.chunks.descriptors import Strip, TransferUnits
from tests.harness.loopback_pair import DRAFT, FULL, GDN, random_ids, small_layout
from tests.harness.segments_twin import chunk_segments

LAYOUT = small_layout((GDN, GDN, GDN, FULL) * 2 + (DRAFT,))
GRAIN = TransferUnits.of(LAYOUT)
LOCAL, REMOTE = 8, 11


def spans(strips: list[Strip]) -> np.ndarray:
    """Return (offset, length) of every unit."""
    return np.array(
        [
            (strip.offset + number * strip.stride, strip.length)
            for strip in strips
            for number in range(strip.count)
        ]
    )


@given(
    seed=st.integers(0, 2**32),
    pages=st.integers(0, 6),
    layers=st.tuples(st.integers(0, 8), st.integers(1, 9)),
    state=st.booleans(),
)
def test_every_byte_of_a_window_is_in_the_units_and_no_other(
    seed: int, pages: int, layers: tuple[int, int], state: bool
) -> None:
    first, end = layers[0], min(9, layers[0] + layers[1])
    generator = np.random.default_rng(seed)
    local_pages, local_slot = random_ids(LAYOUT, LOCAL, pages, generator)
    remote_pages, remote_slot = random_ids(LAYOUT, REMOTE, pages, generator)
    # Sometimes sorted, so that runs are merged.
    if seed % 2:
        local_pages, remote_pages = tuple(sorted(local_pages)), tuple(sorted(remote_pages))
    header = ChunkHeader(0, first, end, 0, pages, state)
    segments = chunk_segments(
        LAYOUT, header, local_pages, remote_pages, local_slot if state else None, remote_slot
    )
    if len(segments) == 0:
        return
    sizes = [slabs * LAYOUT.slab_bytes for slabs in (LOCAL, REMOTE)]
    found = GRAIN.indices(segments, *sizes)
    assert found is not None
    sent = [spans(GRAIN.strips(size)) for size in sizes]
    copies = set()
    for local, remote in zip(sent[0][found.local], sent[1][found.remote], strict=True):
        assert local[1] == remote[1]
        copies |= {(local[0] + byte, remote[0] + byte) for byte in range(0, int(local[1]), 64)}
    assert copies == {
        (local + byte, remote + byte)
        for local, remote, length in segments.tolist()
        for byte in range(0, length, 64)
    }


@pytest.mark.parametrize(
    "segment",
    [
        (8, 0, GRAIN.block_bytes),
        (0, 0, GRAIN.block_bytes // 2),
        (GRAIN.states[0].length // 2, 0, GRAIN.states[0].length),
        (0, GRAIN.states[-1].offset, GRAIN.states[0].length),
    ],
)
def test_what_is_no_unit_is_none(segment: tuple[int, int, int]) -> None:
    size = LOCAL * LAYOUT.slab_bytes
    assert GRAIN.indices(np.array([segment], dtype=np.int64), size, size) is None
    beside = np.array([(0, 0, GRAIN.block_bytes), segment], dtype=np.int64)
    assert GRAIN.indices(beside, size, size) is None
