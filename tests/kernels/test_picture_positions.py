"""Rotary positions of pictures: on three axes in prompts, and as a delta behind them. Equal axes
and a delta of 0 give the very bits of text."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from tasuki.model.backends.torch_backend import TorchBackend
from tasuki.model.backends.triton_backend import TritonBackend
from tasuki.model.backends.triton_prefill import PrefillPlan, TritonPrefill
from tasuki.model.forward import (
    BF16_STEPS,
    Batch,
    DecodeBatch,
    RowSpan,
    SequenceSlice,
    VerifyBatch,
    one_rank,
)
from tasuki.model.ops.attention.qk_norm_rope_gate import RopeAxes, RopeDeltas, TokenPlaces
from tasuki.model.ops.attention.rope import rotary_cache
from tasuki.model.vision.prompt_positions import rotary_axes
from tasuki.model.weights.layers import AttentionWeights

from .attention import KV, AttentionCase, Heads, Shape, attention_case, close_pages
from .tensors import close
from .test_draft_entries import WIDTH, EntriesCase, each_dtype, linear, on_device, runs

pytestmark = pytest.mark.usefixtures("poisoned_empty")
SHAPES = {
    "fp32": Shape(Heads(2, 1, 64), torch.float32, 2e-6),
    "bf16": Shape(Heads(3, 1, 64, 0.5), torch.bfloat16, 1.5e-2),
}
RUNS = ((3, 61), (7, 0), (18, 130))
LENGTHS, CONTEXTS = zip(*RUNS, strict=True)
TOKENS = sum(LENGTHS)
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
each_kv = pytest.mark.parametrize("fp8", KV.values(), ids=KV)


def case_of(shape: Shape, device: torch.device, *, fp8: bool = False) -> AttentionCase:
    return attention_case(shape.heads, LENGTHS, CONTEXTS, shape.dtype, device, fp8=fp8)


def axes_of(case: AttentionCase) -> Tensor:
    pairs = case.config.rotary_dim // 2
    side = pairs // 4
    return rotary_axes((pairs - 2 * side, side, side), pairs)


def by_axes(case: AttentionCase, positions: Tensor) -> RopeAxes:
    """Return rotary positions [3, T] in rows as wide as prompts have them."""
    wide = torch.full((3, positions.shape[1] + 5), -1, dtype=torch.int32)
    wide[:, : positions.shape[1]] = positions
    device = case.device
    return RopeAxes(wide.to(device)[:, : positions.shape[1]], axes_of(case).int().to(device))


def turned(case: AttentionCase, places: TokenPlaces, projected: Tensor) -> tuple[Tensor, Tensor]:
    """Return the queries and the pages. The case's own pages are not changed."""
    kv = case.kv.clone()
    return replace(case, kv=kv).queries(projected, places), kv


def same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@each_shape
@each_kv
def test_equal_axes_and_no_delta_are_text(shape: Shape, fp8: bool, device: torch.device) -> None:
    case = case_of(shape, device, fp8=fp8)
    projected, places = case.projected(), case.places(TOKENS - 2)
    expected, pages = turned(case, places, projected)
    live = expected[: TOKENS - 2]
    equal = by_axes(case, places.positions.cpu().expand(3, -1))
    deltas = RopeDeltas(torch.zeros_like(places.positions))
    for rope in (equal, deltas):
        for gaps in (False, True):
            found, own = turned(case, replace(places, rope=rope, gaps=gaps), projected)
            assert same_bits(found[: TOKENS - 2], live) and same_bits(own, pages)


@each_shape
def test_a_delta_is_one_for_each_token(shape: Shape, device: torch.device) -> None:
    """Queries are those of other positions, and keys stand in the places of their own."""
    case = case_of(shape, device)
    projected, places = case.projected(), case.places(TOKENS)
    deltas = -torch.arange(TOKENS, dtype=torch.int32, device=device) % 4
    deltas = torch.minimum(deltas, places.positions) * -1
    behind = replace(places, rope=RopeDeltas(deltas))
    moved = replace(places, positions=places.positions + deltas)
    found, pages = turned(case, behind, projected)
    expected, _ = turned(case, moved, projected)
    assert same_bits(found, expected)
    plain, _ = turned(case, places, projected)
    assert not same_bits(found, plain)
    by_three = by_axes(case, moved.positions.cpu().expand(3, -1))
    again, same_pages = turned(case, replace(places, rope=by_three), projected)
    assert same_bits(again, expected) and same_bits(same_pages, pages)


def test_padding_reads_no_angle_below_the_table(device: torch.device) -> None:
    """A gap has position -1, and its row has the delta of its sequence."""
    case = case_of(SHAPES["fp32"], device)
    projected, places = case.projected(), case.places(TOKENS)
    gaps = places.positions.clone()
    gaps[::3] = -1
    deltas = torch.full_like(gaps, -2)
    found, _ = turned(
        case, replace(places, positions=gaps, gaps=True, rope=RopeDeltas(deltas)), projected
    )
    at_start = replace(places, positions=(gaps - 2).clamp(min=0))
    expected, _ = turned(case, at_start, projected)
    assert same_bits(found, expected)


def picture_slices(case: AttentionCase) -> list[SequenceSlice]:
    """Return the case's runs, with different positions on each axis in the first and last."""
    generator = torch.Generator().manual_seed(6)
    slices = []
    for number, (length, before) in enumerate(RUNS):
        item = SequenceSlice([1] * length, before, case.pages[number], 0, 0)
        if number != 1:
            most = torch.arange(before - 1, before + length)
            back = torch.randint(0, 40, (3, length + 1), generator=generator)
            item = replace(item, rope_positions=(most - back).clamp(min=0))
        slices.append(item)
    return slices


@each_shape
def test_three_axes_equal_the_cpu_path(shape: Shape, device: torch.device) -> None:
    case = case_of(shape, device)
    projected, batch = case.projected(), Batch.pack(picture_slices(case))
    axes, cpu = axes_of(case), torch.device("cpu")
    fields = {name: getattr(case.weights, name).to(cpu) for name in vars(case.weights)}
    kv = case.kv.to(cpu, copy=True)
    oracle = TorchBackend(case.config, axes=axes).bind(batch)
    expected = oracle.attention(projected.to(cpu), AttentionWeights(**fields), kv)
    plan = PrefillPlan.of(batch, case.config, shape.dtype, device, axes.int().to(device))
    rotary = rotary_cache(case.config, 512, device)
    operators = TritonPrefill(case.config, plan, rotary, None, one_rank)  # type: ignore[arg-type]
    close(operators.attention(projected, case.weights, case.kv), expected, shape.tolerance)
    close_pages(case.kv, kv, shape.tolerance)


@each_dtype
def test_entries_take_the_rows_of_pictures(
    dtype: torch.dtype, tolerance: float, device: torch.device
) -> None:
    """Rows stand over one token, over a page's end, and at a chunk's first token."""
    rows = torch.randn(3, WIDTH).to(dtype)
    first, second, third = runs()
    positions = torch.tensor([[60, 61, 62, 63], [60, 4, 5, 9], [60, 70, 1, 2]])
    seen = [
        replace(first, pictures=(RowSpan(1, rows[:1]),)),
        replace(second, pictures=(RowSpan(0, rows[:2]),), rope_positions=positions),
        replace(third, pictures=(RowSpan(0, rows[2:]),), rope_delta=-2),
    ]
    case = EntriesCase.of(seen, dtype, device)
    pairs = case.config.rotary_dim // 2
    axes = rotary_axes((pairs - 2 * (pairs // 4), pairs // 4, pairs // 4), pairs)
    hidden = torch.randn(len(case.batch.token_ids), WIDTH).to(dtype)
    entries = TorchBackend(case.config, axes=axes).bind(case.batch).entries()
    kv, carry = case.expected.views("kv")[-1], case.expected.views("carry")[0]
    entries.write(case.batch.token_ids, hidden, case.embedding, case.weights, kv, carry)
    plan = PrefillPlan.of(case.batch, case.config, dtype, device, axes.int().to(device))
    rotary = rotary_cache(case.config, 128, device)
    operators = TritonPrefill(case.config, plan, rotary, None, one_rank)  # type: ignore[arg-type]
    own = replace(operators.entries(), product=linear)
    weights, embedding = on_device(case.weights, device), case.embedding.to(device)
    tokens = case.batch.token_ids.to(device)
    own.write(
        tokens,
        hidden.to(device),
        embedding,
        weights,
        case.arena.views("kv")[-1],
        case.arena.views("carry")[0],
    )
    case.compare(tolerance)


def ints(count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.int32)


@pytest.mark.parametrize("axes", [None, torch.zeros(4, dtype=torch.int32)], ids=["text", "seen"])
def test_steps_have_deltas_with_a_tower_only(
    axes: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of text keeps the kernel without a load of deltas."""
    bound: list[DecodeBatch | VerifyBatch] = []

    def note(config: object, batch: DecodeBatch | VerifyBatch, *others: object) -> None:
        bound.append(batch)

    for name in ("TritonDecode", "TritonRowDecode", "TritonVerify"):
        monkeypatch.setattr(f"tasuki.model.backends.triton_backend.{name}", note)
    backend = SimpleNamespace(
        **dict.fromkeys(("_config", "_rotary", "_side", "_reduce", "_dtype")),
        _axes=axes,
        _activations=BF16_STEPS,
    )
    deltas = ints(2)
    decode = DecodeBatch(*(ints(2) for _ in range(6)), rope_deltas=deltas)
    TritonBackend.bind_decode(backend, decode, None)  # type: ignore[arg-type]
    verify = VerifyBatch(*(ints(2) for _ in range(12)), rope_deltas=deltas)
    TritonBackend.bind_verify(backend, verify, None)  # type: ignore[arg-type]
    for batch in bound:
        assert batch.rope_deltas is (None if axes is None else deltas)
    assert len(bound) == 2
