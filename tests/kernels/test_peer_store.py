"""Scattered stores into a peer's arena: every byte in its place, none elsewhere, none through a
shut gate."""

import numpy as np
import pytest
import torch

from tasuki.pycache._cpp_cache import fill_piece_table, piece_table_words
from tasuki.transfer.chunks.descriptors import Segments
from tasuki.transfer.transports.nvlink.store_kernel import (
    ALIGNMENT,
    CHUNK_BYTES,
    Grid,
    Target,
    launch_store,
    naive_store_segments,
)

SIZE = 1 << 21
PERMISSION = 7


def random_segments(lengths: list[int], seed: int) -> Segments:
    """Return segments of these lengths, apart from each other, at different places on both
    sides."""
    generator = np.random.default_rng(seed)
    columns = []
    for _ in range(2):
        order = generator.permutation(len(lengths))
        gaps = generator.integers(0, 9, len(lengths)) * ALIGNMENT
        offsets = np.empty(len(lengths), dtype=np.int64)
        at = 0
        for index in order:
            at += int(gaps[index])
            offsets[index] = at
            at += lengths[index]
        assert at <= SIZE
        columns.append(offsets)
    return np.stack([*columns, np.array(lengths, dtype=np.int64)], axis=1)


def stored(
    segments: Segments, grid: Grid, device: torch.device, gate: int = PERMISSION
) -> tuple[np.ndarray, np.ndarray, int]:
    """Launch and return (source, target, flag)."""
    source = np.random.default_rng(1).integers(0, 256, SIZE, dtype=np.uint8)
    read = torch.from_numpy(source).to(device)
    write = torch.full((SIZE,), 0xA5, dtype=torch.uint8, device=device)
    gates = torch.tensor([gate], dtype=torch.int64, device=device)
    flag = torch.zeros(1, dtype=torch.int32, device=device)
    table = np.full(piece_table_words(len(segments)), -1, dtype=np.int64)
    fill_piece_table(table, segments, CHUNK_BYTES)
    target = Target(write.data_ptr(), gates.data_ptr(), PERMISSION)
    launch_store(
        read.data_ptr(),
        target,
        torch.from_numpy(table).to(device),
        len(segments),
        flag.data_ptr(),
        grid,
    )
    return source, write.cpu().numpy(), int(flag.item())


@pytest.mark.parametrize("grid", [Grid(1, 1), Grid(3, 1), Grid(3, 4), Grid(40, 2)], ids=str)
@pytest.mark.parametrize(
    "lengths",
    [
        [ALIGNMENT],
        [32 * 1024],
        [32 * 1024 + ALIGNMENT, 48, 3 * 32 * 1024, 16],
        [4096] * 23,
        [700_000, 16, 300_000 // 16 * 16],
    ],
    ids=["sixteen_bytes", "one_chunk", "ragged", "pages", "runs"],
)
def test_pieces_arrive_and_nothing_else_changes(
    lengths: list[int], grid: Grid, device: torch.device
) -> None:
    segments = random_segments(lengths, seed=len(lengths))
    source, target, flag = stored(segments, grid, device)
    expected = np.full(SIZE, 0xA5, dtype=np.uint8)
    naive_store_segments(source, expected, segments)
    assert np.array_equal(target, expected)
    assert flag == 1


def test_a_shut_gate_lets_nothing_through(device: torch.device) -> None:
    segments = random_segments([4096, 64], seed=3)
    _, target, flag = stored(segments, Grid(4, 1), device, gate=PERMISSION + 1)
    assert (target == 0xA5).all()
    assert flag == 0


def test_a_table_counts_its_chunks_and_starts_with_nobody_done() -> None:
    table = np.full(piece_table_words(3) + 5, -1, dtype=np.int64)
    segments = np.array([[0, 16, 16], [32, 64, 32 * 1024], [1 << 20, 0, 32 * 1024 + 16]])
    assert fill_piece_table(table, segments, CHUNK_BYTES) == 1 + 1 + 2
    assert table[0] == 0
    assert (table[-5:] == -1).all()
