"""Attention equals the CPU path's. Cases: runs over cached pages, split or whole or with early keys
attended elsewhere. Also a decode step for every split of its pages."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tasuki.model.ops.attention.decode import DecodeWorkspace, paged_attention_decode
from tasuki.model.ops.attention.gathered_rows import turned_pages
from tasuki.model.ops.attention.long_context import (
    MOST_KEYS,
    ContextBlock,
    ContextBlocks,
    block_rows,
    cudnn_attention,
    gathered_bytes,
    served_keys,
)
from tasuki.model.ops.attention.page_rows import fp8_views, read_pages
from tasuki.model.ops.attention.prefill import paged_attention_prefill
from tasuki.model.ops.attention.prefill_tiles import PrefillTiles
from tasuki.model.ops.attention.reference import naive_attention
from tasuki.model.ops.attention.tile_groups import TileGroup, turned_bytes
from tasuki.model.ops.row_room import RowRoom
from tests.harness.covering import every_pair

from .attention import KV, AttentionCase, Heads, Shape, attention_case, close_pages, each_kv, roomy
from .tensors import close

pytestmark = pytest.mark.usefixtures("poisoned_empty")

# (tokens, context before them) of each sequence.
RUNS = {
    "cold": [(34, 0)],
    "cached": [(3, 61), (18, 130)],
    "mixed": [(1, 64), (20, 0)],
}


RUN_SHAPES = {
    "fp32": Shape(Heads(2, 1, 64), torch.float32, 2e-6),
    "fp32-split": Shape(Heads(2, 1, 64), torch.float32, 2e-6, parts=3),
    "bf16": Shape(Heads(2, 1, 256), torch.bfloat16, 1.5e-2),
    "bf16-split": Shape(Heads(1, 1, 64), torch.bfloat16, 1.5e-2, parts=3),
}


@every_pair(shape=RUN_SHAPES, fp8=KV, runs=RUNS)
def test_runs_equal_the_cpu_path(
    shape: Shape, fp8: bool, runs: list[tuple[int, int]], device: torch.device
) -> None:
    lengths, contexts = zip(*runs, strict=True)
    case = attention_case(shape.heads, lengths, contexts, shape.dtype, device, fp8=fp8)
    projected = case.projected()
    expected, kv = case.oracle(projected, len(runs))
    places = case.places(sum(lengths))
    q = case.queries(projected, places)
    tiles = PrefillTiles.of(lengths, contexts, case.config, shape.dtype, device)
    tiles = replace(tiles, splits=shape.parts)
    output = paged_attention_prefill(q, projected, case.config, case.kv, places.page_table, tiles)
    close(output, expected, roomy(shape.tolerance, fp8=fp8))
    close_pages(case.kv, kv, shape.tolerance)


@pytest.mark.parametrize(
    ("most", "turned", "splits"),
    [(2**18, [3, 1], 1), (64, [0, 1], 1), (64, [0, 1], 2)],
    ids=["alone", "as-stored", "as-stored-split"],
)
def test_rows_that_are_turned_for_one_sequence_at_a_time_or_not_at_all_equal_the_cpu_path(
    most: int,
    turned: list[int],
    splits: int,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tasuki.model.ops.attention.tile_groups.LEAST_KEYS", 64)
    monkeypatch.setattr("tasuki.model.ops.attention.tile_groups.MOST_KEYS", most)
    lengths, contexts = zip(*RUNS["cached"], strict=True)
    case = attention_case(Heads(2, 1, 64), lengths, contexts, torch.bfloat16, device, fp8=True)
    projected = case.projected()
    expected, _ = case.oracle(projected, len(lengths))
    places = case.places(sum(lengths))
    q = case.queries(projected, places)
    tiles = PrefillTiles.of(lengths, contexts, case.config, torch.bfloat16, device)
    tiles = replace(tiles, splits=splits)
    assert [_turned(group) for group in tiles.groups] == turned
    output = paged_attention_prefill(q, projected, case.config, case.kv, places.page_table, tiles)
    close(output, expected, roomy(1.5e-2, fp8=True))


def _turned(group: TileGroup) -> int:
    """Return the number of pages."""
    return 0 if group.places is None else len(group.places)


def test_turned_pages_hold_what_the_cpu_reads(device: torch.device) -> None:
    case = attention_case(Heads(4, 2, 64), [1, 2], [70, 130], torch.bfloat16, device, fp8=True)
    case.queries(case.projected(), case.places(3))
    _, scales = fp8_views(case.kv)
    scales[case.pages[1][1], 0, 1, 5] = 255
    places = [(1, 2), (0, 1), (1, 1)]
    pages = turned_pages(case.kv, case.page_table(), case.int32(places), torch.bfloat16)
    stored = torch.tensor([case.pages[sequence][page] for sequence, page in places])
    for side, rows in enumerate(read_pages(case.kv.cpu(), stored, torch.bfloat16, RowRoom())):
        got = pages[:, :, side].transpose(0, 1).flatten(1, 2).cpu()
        torch.testing.assert_close(got, rows, rtol=0, atol=0, equal_nan=True)


def test_no_more_is_turned_than_is_counted() -> None:
    """The case is a forward over sequences of many lengths."""
    config, cpu = Heads(16, 4, 256).config(), torch.device("cpu")
    contexts = [300, 30_000, 30_000, 8000, 2**18 - 128, 5000, 70_000, 2**18]
    tiles = PrefillTiles.of([128] * 8, contexts, config, torch.bfloat16, cpu)
    assert sum(len(group.tiles) for group in tiles.groups) == 8
    turned = [_turned(group) for group in tiles.groups]
    # Longest first. Contexts longer than any model's are read in their stored layout.
    assert turned == [0, 2**12, 1096, 471 + 471, 127 + 81 + 7]
    of_page = 2 * 4 * 64 * 256 * 2
    assert max(turned) * of_page == turned_bytes(config, 2**18, torch.bfloat16)
    assert turned_bytes(config, 64, torch.bfloat16) == 2**16 // 64 * of_page
    assert turned_bytes(config, 2**18, torch.float32) == 0


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


@every_pair(
    # The earlier part is rounded once more, and the interpreter truncates where hardware rounds.
    of={"fp32": (torch.float32, 16, 2e-6), "bf16": (torch.bfloat16, 128, 3e-2)},
    fp8=KV,
    most_keys={"at-once": MOST_KEYS, "in-pieces": 64},
)
def test_blocks_and_what_they_leave_equal_the_cpu_path(
    of: tuple[torch.dtype, int, float], fp8: bool, most_keys: int, device: torch.device
) -> None:
    dtype, block, tolerance = of
    lengths, contexts = (9, block + 4), (70, 130)
    case = attention_case(Heads(2, 1, 64), lengths, contexts, dtype, device, fp8=fp8)
    projected = case.projected()
    expected, _ = case.oracle(projected, 2)
    places = case.places(sum(lengths))
    q = case.queries(projected, places)
    blocks = (
        ContextBlock(row=9, rows=block, sequence=1, keys=128),
        ContextBlock(row=9 + block, rows=4, sequence=1, keys=64),
    )
    context = ContextBlocks(blocks, block, naive_attention, most_keys)
    tiles = PrefillTiles.after(context, lengths, contexts, dtype, device)
    output = paged_attention_prefill(q, projected, case.config, case.kv, places.page_table, tiles)
    close(output, expected, tolerance)


def test_no_more_is_gathered_than_is_counted(device: torch.device) -> None:
    config, keys = Heads(2, 1, 64).config(), served_keys(8192)
    q = torch.zeros(4, 2, 64, dtype=torch.bfloat16, device=device)
    kv = torch.zeros(keys // 64, 1, 2, 64, 64, dtype=torch.bfloat16, device=device)
    pages = torch.arange(keys // 64, dtype=torch.int32, device=device)[None]
    gathered = []

    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        gathered.append(sum(x.untyped_storage().nbytes() for x in (k, v)))
        return q, q[..., 0].float()

    blocks = (ContextBlock(row=0, rows=4, sequence=0, keys=keys),)
    for most_keys in (MOST_KEYS, keys // 2):
        ContextBlocks(blocks, 4, attend, most_keys).run(q, kv, pages)
    counted = gathered_bytes(config, 8192 + 4, torch.bfloat16)
    assert gathered == [counted, counted // 2, counted // 2]


def test_what_is_gathered_is_counted_up_to_a_piece_and_in_16_bit_types_only() -> None:
    config = Heads(16, 4, 256).config()
    assert gathered_bytes(config, 2**18, torch.bfloat16) == 2**30
    assert gathered_bytes(config, 2**20, torch.bfloat16) == 2**30
    assert gathered_bytes(config, 100_000, torch.bfloat16) == 98_304 * 4096
    assert gathered_bytes(config, 8000, torch.bfloat16) == 0
    assert gathered_bytes(config, 2**20, torch.float32) == 0


def test_runs_are_cut_into_blocks_that_see_many_keys() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        raise AssertionError("planning attends to nothing")

    context = ContextBlocks.of([2500, 700, 512, 3000], [8000, 17000, 9000, 6200], 1024, attend)
    assert context.blocks == (
        ContextBlock(row=1024, rows=1024, sequence=0, keys=8192),
        ContextBlock(row=2500, rows=700, sequence=1, keys=16384),
        ContextBlock(row=3712 + 2048, rows=952, sequence=3, keys=8192),
    )
    served = context.served(512)
    assert [served.get(row, 0) for row in (0, 1024, 1536, 2048)] == [0, 8192, 8192, 0]


def test_keys_come_in_few_sizes_that_leave_little() -> None:
    sizes = {served_keys(before) for before in range(0, 262144, 64)}
    assert len(sizes) < 40
    assert all(size % 2048 == 0 for size in sizes)
    for before in (8192, 15000, 50000, 262143):
        assert before - served_keys(before) < max(2048, before / 8)
    assert served_keys(8191) == 0


def test_the_last_piece_of_a_long_context_has_a_size_that_is_planned() -> None:
    planned = {served_keys(before) for before in range(0, MOST_KEYS + 1, 64)}
    for before in range(MOST_KEYS, 2**21 + 1, 2048):
        assert (served_keys(before) - 1) % MOST_KEYS + 1 in planned


def test_blocks_fill_the_device() -> None:
    assert block_rows(query_heads=16, processors=132) == 1024
    assert block_rows(query_heads=24, processors=132) == 1408
    assert block_rows(query_heads=64, processors=132) == 256
    assert block_rows(query_heads=300, processors=132) == 128


def test_cudnn_equals_the_naive_twin(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("cuDNN needs a GPU")
    torch.manual_seed(5)

    def normal(rows: int, heads: int) -> Tensor:
        return torch.randn(rows, heads, 256, device=device).to(torch.bfloat16)

    q, k, v = normal(256, 8), normal(4096, 2), normal(4096, 2)
    output, sums = cudnn_attention(q, k, v)
    expected, expected_sums = naive_attention(q, k, v)
    close(output, expected.cpu(), 1.5e-2)
    close(sums, expected_sums.cpu(), 1e-3)


def _step(
    case: AttentionCase,
    projected: Tensor,
    live: int,
    workspace: DecodeWorkspace,
    positions: int = 256,
) -> Tensor:
    """Run a step of the first `live` sequences, a token each."""
    places = case.places(live)
    return paged_attention_decode(
        case.queries(projected, places, positions),
        projected,
        case.config,
        case.kv,
        places.page_table,
        places.positions + 1,
        places.rows,
        workspace,
    )


STEP_SHAPES = {
    "fp32": Shape(Heads(2, 1, 64), torch.float32, 2e-6),
    "group-3": Shape(Heads(6, 2, 128), torch.bfloat16, 1e-2),
    "head-256": Shape(Heads(4, 2, 256), torch.bfloat16, 1e-2),
    "group-17": Shape(Heads(17, 1, 64, rotary=0.375), torch.bfloat16, 1e-2),
}


@every_pair(shape=STEP_SHAPES, fp8=KV, shares={"1": 1, "3": 3, "8": 8})
def test_step_equals_the_cpu_path(
    shape: Shape, fp8: bool, shares: int, device: torch.device
) -> None:
    # Lengths around a page's end; the last sequence is padding, and its pages hold NaN.
    contexts = [0, 63, 64, 200, 5]
    case = attention_case(shape.heads, [1] * 5, contexts, shape.dtype, device, fp8=fp8)
    live = 4
    projected = case.projected()
    expected, kv = case.oracle(projected, live)
    workspace = DecodeWorkspace.sized(case.config, 5, device, shares)
    for partial in (workspace.outputs, workspace.weights):
        partial.fill_(torch.nan)
    output = _step(case, projected, live, workspace)
    close(output[:live], expected, roomy(shape.tolerance, fp8=fp8))
    close_pages(case.kv, kv, shape.tolerance)
    assert output[live:].isnan().all()


@each_kv
def test_a_long_row_beside_many_short_ones_is_joined_whole(fp8: bool, device: torch.device) -> None:
    """With many rows, few parts are joined at once. This row has 13 parts of one page each, or two
    of 7."""
    contexts = [5 * row for row in range(16)] + [800]
    case = attention_case(Heads(2, 1, 64), [1] * 17, contexts, torch.bfloat16, device, fp8=fp8)
    projected = case.projected()
    expected, _ = case.oracle(projected, 17)
    for shares in (40, 4):
        workspace = DecodeWorkspace.sized(case.config, 17, device, shares)
        output = _step(case, projected, 17, workspace, 1024)
        close(output, expected, roomy(1e-2, fp8=fp8))


@pytest.mark.parametrize("side", [0, 1], ids=["key", "value"])
def test_a_row_that_is_no_number_shows_in_its_sequence_alone(
    side: int, device: torch.device
) -> None:
    """The codes of an FP8 row are numbers; its scale marks it as NaN."""
    case = attention_case(Heads(4, 2, 64), [1, 1], [70, 70], torch.bfloat16, device, fp8=True)
    _, scales = fp8_views(case.kv)
    scales[case.pages[0][0], 1, side, 9] = 255
    projected = case.projected()
    expected, _ = case.oracle(projected, 2)
    output = _step(case, projected, 2, DecodeWorkspace.sized(case.config, 2, device, 3))
    assert torch.equal(output.isnan().cpu(), expected.isnan())
    assert output[0].isnan().sum() == 2 * 64


@pytest.mark.parametrize("power", [-70, -20, 20], ids=str)
def test_values_of_any_size_keep_their_digits(power: int, device: torch.device) -> None:
    """Products of weights and powers of two pass through float16, but values of these sizes do not
    fit it."""
    case = attention_case(Heads(2, 1, 64), [1, 1], [130, 70], torch.bfloat16, device, fp8=True)
    projected = case.projected()
    # Values of a sequence have sizes of their own, some are far below the others.
    _, scales = fp8_views(case.kv)
    scales[:, :, 1] = torch.where(scales[:, :, 1] == 255, 255, scales[:, :, 1] + power)
    scales[case.pages[0][0], :, 1, ::3] -= 30
    projected[:, -64:] *= 2.0**power
    expected, _ = case.oracle(projected, 2)
    output = _step(case, projected, 2, DecodeWorkspace.sized(case.config, 2, device, 3))
    close(output * 2.0**-power, expected * 2.0**-power, 3e-2)


def test_workspace_holds_as_many_parts_as_programs_and_sequences_meet(
    device: torch.device,
) -> None:
    config = Heads(8, 2, 64).config()
    workspace = DecodeWorkspace.of(config, 4, device)
    assert workspace.shares >= 1
    assert workspace.outputs.shape == (2 * workspace.shares + 4, 8, 64)


def test_pages_that_are_not_dense_are_refused(device: torch.device) -> None:
    case = attention_case(Heads(2, 2, 64), [1], [3], torch.float32, device)
    places = case.places(1)
    with pytest.raises(ValueError, match="pages must be dense"):
        paged_attention_decode(
            torch.zeros(1, 2, 64, device=device),
            case.projected(),
            case.config,
            case.kv[:, :1],
            places.page_table,
            places.positions + 1,
            places.rows,
            DecodeWorkspace.sized(case.config, 1, device, 1),
        )
