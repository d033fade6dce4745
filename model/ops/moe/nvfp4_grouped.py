"""Products of rows sorted by expert with their expert's NVFP4 matrix (W4A16), in one launch. The
number of rows per expert is known on the device only.

This is `fp8_grouped.py` for half the bytes, and for rows of prompts too. Weights are converted in
registers (e2m1.py), scaled by group, and multiplied in bf16. A sum over all columns gets the
tensor's scale in float32. Reference: `reference.product` of each expert's rows.
"""

import triton
import triton.language as tl
from torch import Tensor

from tasuki.model.ops.linear.e2m1 import grouped_halves, row_factors
from tasuki.model.weights.kernel_layout import NvFp4Halves
from tasuki.utils.triton.kernel_spec import KernelSpec

from .expert_tiles import Tile, are_few, multiply, place_of_tile

# The fastest of ten at 4, 16 and 64 tokens of 35B-A3B on an H200.
_FEW = Tile(64, 16, 3, 2)
_MANY = Tile(128, 32, 4, 4)


def grouped_nvfp4(
    pairs: Tensor, weight: NvFp4Halves, ends: Tensor, tile: Tile | None = None
) -> Tensor:
    """Multiply pairs, sorted by expert, by their expert's NVFP4 matrix. Return [P, rows] bf16.
    pairs: [P, columns] bf16 contiguous; weight: [experts, rows, columns]; ends [experts] int32,
    ascending: end of each expert's rows. Rows past the last end are not written. By default the
    number of pairs decides the tile."""
    tile = tile or (_FEW if are_few(len(pairs), weight.shape[0]) else _MANY)
    operands = (weight.packed, weight.groups, weight.factors)
    return multiply(_nvfp4_grouped_kernel, pairs, operands, ends, weight.shape, tile)


@triton.jit
def _nvfp4_grouped_kernel(
    pairs,
    codes,
    groups,
    factors,
    ends,
    output,
    ALL_ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    PAIRS: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    blocks: tl.constexpr = (COLUMNS + 127) // 128
    expert, pair, end = place_of_tile(ends, tl.program_id(1), EXPERTS, PADDED, PAIRS)
    if expert >= EXPERTS:
        return
    pair += tl.arange(0, PAIRS)
    expert = expert.to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    # Rows past the matrix read its last one and are not stored.
    kept = tl.minimum(row, ALL_ROWS - 1)
    column = tl.arange(0, 64)
    group = tl.arange(0, 4)
    counts = (pair < end)[:, None]
    of_row = codes + (expert * ALL_ROWS + kept)[None, :] * (blocks * 64) + column[:, None]
    of_group = groups + (expert * ALL_ROWS + kept)[None, :] * (blocks * 8) + group[:, None]
    of_pair = pairs + pair.to(tl.int64)[:, None] * COLUMNS + column[None, :]
    result = tl.zeros([PAIRS, ROWS], tl.float32)
    for block in tl.range(0, blocks, num_stages=STAGES):
        begin = block * 128
        low, high = grouped_halves(
            tl.load(of_row + block * 64),
            tl.load(of_group + block * 8),
            tl.load(of_group + block * 8 + 4),
            tl.bfloat16,
        )
        if COLUMNS % 128:
            first = tl.load(of_pair + begin, counts & (begin + column < COLUMNS)[None, :], 0.0)
            left = (begin + 64 + column < COLUMNS)[None, :]
            second = tl.load(of_pair + begin + 64, counts & left, 0.0)
        else:
            first = tl.load(of_pair + begin, counts, 0.0)
            second = tl.load(of_pair + begin + 64, counts, 0.0)
        result = tl.dot(first, low, result)
        result = tl.dot(second, high, result)
    multiplier, divisor = row_factors(factors + expert * (2 * ALL_ROWS), kept, ALL_ROWS)
    result = result * multiplier[None, :] / divisor[None, :]
    at = output + pair.to(tl.int64)[:, None] * ALL_ROWS + row[None, :]
    tl.store(at, result.to(output.dtype.element_ty), counts & (row < ALL_ROWS)[None, :])


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time. They have the shapes of gate_up and
    down of 35B-A3B: a step of 128 requests, a chunk of 8192 tokens."""

    def spec(name: str, size: tuple[int, int], few: bool) -> KernelSpec:
        tile = _FEW if few else _MANY
        return KernelSpec.of(
            f"moe_nvfp4_grouped_{name}_{'few' if few else 'many'}",
            _nvfp4_grouped_kernel,
            tile.constants(256, *size),
            tile.warps,
            fp32="factors",
            i32="ends",
            codes="*u8",
            groups="*fp8e4nv",
        )

    shapes = {"gate_up": (1024, 2048), "down": (2048, 512)}
    return [spec(name, size, few) for few in (True, False) for name, size in shapes.items()]
