"""A GPU's digest and fp8 rows of a layer chunk equal the references' bit for bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tasuki.pycache.layout import CacheLayout
from tasuki.pycache.parts import FP8_ROWS
from tasuki.transfer.chunks.chunk import ChunkHeader
from tasuki.transfer.chunks.digest import (
    MASK,
    ArenaChunk,
    ChunkDigester,
    chunk_geometry,
    word_keys,
)
from tasuki.transfer.chunks.digest_kernel import GpuChunkDigester, PlacedRows, digest_rows
from tasuki.transfer.precision.layer_codec import TorchLayerCodec
from tasuki.transfer.precision.row_codec_kernel import GpuLayerCodec, KernelRows
from tasuki.transfer.precision.wire_layout import RowFormat, WireUnits
from tasuki.transfer.settings import Precision, WirePrecision
from tests.harness.loopback_pair import FULL, GDN, small_layout

NUMBERS = {"head_dim": 32, "conv_dtype": "bfloat16"} | {
    **{"value_heads": 3, "value_dim": 64, "key_dim": 64}
}
LAYOUT, FP8 = (
    small_layout((GDN, FULL, GDN, FULL), kv_dtype=dtype, **NUMBERS)
    for dtype in ("bfloat16", FP8_ROWS)
)
each_layout = pytest.mark.parametrize("layout", [LAYOUT, FP8], ids=["numbers", "fp8-rows"])
SLABS = 6


def digests_there(
    memory: np.ndarray,
    chunks: list[ArenaChunk],
    device: torch.device,
    layout: CacheLayout = LAYOUT,
) -> list[int]:
    """Return digests as a node with a GPU computes them, or by its kernels in the interpreter if
    there is none."""
    there = torch.from_numpy(memory).to(device)
    if there.is_cuda:
        return GpuChunkDigester(there, layout).digest_all(chunks)
    count, table = chunk_geometry(layout).rows([chunk.places for chunk in chunks])
    if not count:
        return [0] * len(chunks)
    most = layout.longest_row // 8
    keys = torch.from_numpy(word_keys(most).view(np.int64))
    placed = PlacedRows.on(device, count, table)
    digest_rows(there.view(torch.int64), keys, placed)
    return [digest & MASK for digest in placed.digests[: len(chunks)].tolist()]


@each_layout
@pytest.mark.parametrize(
    ("header", "pages", "slot"),
    [
        (ChunkHeader(0, 0, 4, 3, 3, True), (LAYOUT.blocks_per_slab, 1, 0), 5),
        (ChunkHeader(1, 1, 2, 70_000, 1, False), (0,), None),
        (ChunkHeader(2, 0, 1, 0, 0, True), (), 2),
        (ChunkHeader(3, 0, 1, 0, 0, False), (), None),
    ],
)
def test_a_window_has_the_same_digest_on_both(
    layout: CacheLayout,
    header: ChunkHeader,
    pages: tuple[int, ...],
    slot: int | None,
    device: torch.device,
) -> None:
    memory = np.random.default_rng(7).integers(0, 256, SLABS * layout.slab_bytes, dtype=np.uint8)
    chunk = ArenaChunk(2**62 + 5, 9, header, pages, slot)
    (expected,) = ChunkDigester(memory, layout).digest_all([chunk])
    assert digests_there(memory, [chunk], device, layout) == [expected]
    assert (expected == 0) == (not pages and slot is None)


def test_windows_that_are_asked_for_together_keep_their_own_digests(device: torch.device) -> None:
    """One launch also has a layer chunk without rows, and one requested twice."""
    memory = np.random.default_rng(8).integers(0, 256, SLABS * LAYOUT.slab_bytes, dtype=np.uint8)
    twin = ChunkDigester(memory, LAYOUT)
    first = ArenaChunk(2**62 + 5, 9, ChunkHeader(0, 0, 4, 3, 2, True), (1, 0), 5)
    nothing = ArenaChunk(7, 1, ChunkHeader(1, 0, 1, 0, 0, False), (), None)
    asked = [nothing, first, replace(first, transfer_id=6), replace(first, slot=4), first, nothing]
    expected = twin.digest_all(asked)
    assert digests_there(memory, asked, device) == expected
    assert expected[1] == expected[4] and len(set(expected)) == 4
    assert digests_there(memory, [nothing] * 3, device) == [0, 0, 0]


def numbers(rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Return numbers with every float32 exponent but the last subnormal ones, ties, signs and
    zeros."""
    generator = torch.Generator().manual_seed(rows * width)
    values = torch.randn(2, rows, width, generator=generator)
    values *= torch.exp2(torch.randint(-110, 100, (2, rows, 1), generator=generator).float())
    values *= torch.exp2(torch.randint(-12, 1, (2, rows, width), generator=generator).float())
    values[0, 0] = 0
    values[0, 1, 0] = -0.0
    # Half way between numbers of e4m3, below its smallest normal one too.
    values[1, 0] = torch.arange(width) * 2.0**-10
    values[1, 0, -1] = 448
    values[1, 1] = 17 + torch.arange(width) % 8 * 2
    return values.to(dtype)


@pytest.mark.parametrize(("rows", "width"), [(40, 24), (16, 64), (3, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_ways_equal_the_twin(
    rows: int, width: int, dtype: torch.dtype, device: torch.device
) -> None:
    form = RowFormat(Precision.FP8, rows, width)
    values = numbers(rows, width, dtype)
    encoded = KernelRows().encode(form, values.to(device))
    assert torch.equal(encoded.cpu(), form.encode(values))
    decoded = KernelRows().decode(form, encoded, dtype).cpu()
    assert torch.equal(
        decoded.view(torch.uint8), form.decode(form.encode(values), dtype).view(torch.uint8)
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_makes_its_row_nan_and_no_other(
    bad: float, device: torch.device
) -> None:
    form = RowFormat(Precision.FP8, 20, 24)
    values = numbers(20, 24, torch.float32)
    values[1, 5, 7] = bad
    rows = KernelRows()
    got = rows.decode(form, rows.encode(form, values.to(device)), torch.float32).cpu()
    expected = form.decode(form.encode(values), torch.float32)
    assert bool(got[1, 5].isnan().all())
    assert torch.equal(got.nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize("precision", [Precision.FP8, Precision.BF16])
def test_units_of_an_arena_are_encoded_and_decoded_in_place_as_by_the_twin(
    precision: Precision, device: torch.device
) -> None:
    kv = Precision.FP8
    units = WireUnits.of(LAYOUT, WirePrecision(kv, precision))
    size = 4 * LAYOUT.slab_bytes
    plain = np.random.default_rng(5).standard_normal(size // 4, dtype=np.float32).view(np.uint8)
    # The bytes are valid numbers of both dtypes.
    memory = torch.from_numpy(plain.copy())
    memory.view(torch.bfloat16)[:] = memory.view(torch.float32).repeat_interleave(2).bfloat16()
    twin_memory, on_device = memory.clone(), memory.clone().to(device)
    ours, twin = GpuLayerCodec(on_device, units), TorchLayerCodec(twin_memory, units)
    pages = (2 * LAYOUT.blocks_per_slab, 0)
    staging = 3 * LAYOUT.slab_bytes
    for codec, arena in ((ours, on_device), (twin, twin_memory)):
        for layer, ids in ((1, pages), (0, (1,)), (3, pages[:1]), (2, (1,))):
            codec.encode(layer, ids, staging)
            length = units.block_length(layer) + units.state_length(layer)
            for index, unit in enumerate(ids):
                span = (
                    LAYOUT.page_span(layer, unit) if layer % 2 else LAYOUT.state_span(layer, unit)
                )
                head = staging + index * length
                arena[span.offset : span.offset + length] = arena[head : head + length].clone()
            codec.decode(layer, ids)
    assert torch.equal(on_device.cpu(), twin_memory)
    assert not torch.equal(twin_memory[: LAYOUT.slab_bytes], memory[: LAYOUT.slab_bytes])
