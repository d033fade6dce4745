"""Attention of runs over cached pages equals the CPU path's, split or whole."""

from dataclasses import replace

import pytest
import torch
from tasuki.model.ops.attention.prefill import paged_attention_prefill
from tasuki.model.ops.attention.prefill_tiles import PrefillTiles

from .attention import Heads, attention_case
from .tensors import close

pytestmark = pytest.mark.usefixtures("poisoned_empty")

# (tokens, context before them) of each sequence.
RUNS = {
    "cold": [(34, 0)],
    "cached": [(3, 61), (18, 130)],
    "mixed": [(1, 64), (20, 0)],
}


@pytest.mark.parametrize(
    ("heads", "dtype", "splits", "tolerance"),
    [
        (Heads(2, 1, 64), torch.float32, 1, 2e-6),
        (Heads(2, 1, 64), torch.float32, 3, 2e-6),
        (Heads(2, 1, 256), torch.bfloat16, 1, 1.5e-2),
        (Heads(1, 1, 64), torch.bfloat16, 3, 1.5e-2),
    ],
    ids=["fp32", "fp32-split", "bf16", "bf16-split"],
)
@pytest.mark.parametrize("runs", RUNS.values(), ids=RUNS.keys())
def test_runs_equal_the_cpu_path(
    heads: Heads,
    dtype: torch.dtype,
    splits: int,
    tolerance: float,
    runs: list[tuple[int, int]],
    device: torch.device,
) -> None:
    lengths, contexts = zip(*runs, strict=True)
    case = attention_case(heads, lengths, contexts, dtype, device)
    projected = case.projected()
    expected, kv = case.oracle(projected, len(runs))
    places = case.places(sum(lengths))
    q = case.queries(projected, places)
    tiles = replace(PrefillTiles.of(lengths, contexts, case.config, dtype, device), splits=splits)
    output = paged_attention_prefill(q, projected, case.config, case.kv, places.page_table, tiles)
    close(output, expected, tolerance)
    close(case.kv, kv, tolerance)


def test_tiles_cover_every_row_once_and_start_with_the_longest_context(
    device: torch.device,
) -> None:
    config = Heads(4, 2, 64).config()
    tiles = PrefillTiles.of([300, 5], [10, 900], config, torch.bfloat16, device)
    assert tiles.tiles.tolist() == [
        [300, 5, 1, 900, 0],
        [256, 44, 0, 266, 0],
        [128, 128, 0, 138, 0],
        [0, 128, 0, 10, 0],
    ]
