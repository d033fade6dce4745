"""Products of rows sorted by expert with their expert's FP8 matrix, in one launch. The number of
rows per expert is known on the device only.

pairs [P, columns], rows of expert e in [ends[e - 1], ends[e]); weight [experts, rows, columns].
Reference: `reference.product` of each expert's rows.

Pairs in bf16 are multiplied in bf16, with weights converted in registers (W8A16); pairs quantised
by 128 columns are multiplied as codes (W8A8). In both a sum of 128 columns gets its scales in
float32. Weights are the second operand of the matrix instruction. The first operand takes 16 rows,
so no two warps convert the same weights. A program owns a tile of weight rows and a tile of one
expert's rows, found from `ends`. The number of programs is enough for any distribution of P pairs;
spare ones return immediately. Rows past the last end are not written.
"""

import triton
import triton.language as tl
from torch import Tensor

from tasuki.model.ops.linear.e4m3 import turned
from tasuki.model.ops.linear.fp8_scales import GROUP, scale_sizes, scales_of
from tasuki.model.weights.quantised_segments import Fp8
from tasuki.utils.triton.kernel_spec import KernelSpec

from .expert_tiles import Tile, are_few, multiply, place_of_tile

_FEW = Tile(128, 16, 3, 4)
MANY = Tile(128, 64, 4, 4)
"""Tile for many pairs per expert; _FEW is the tile for few pairs. Codes of 16 pairs are multiplied
by another instruction, whose bits differ. Each is the fastest of seven, at
8192 and at 64 tokens of 35B-A3B on an H100. The engine's first forwards use both, so none is
compiled later."""


def grouped_fp8(
    pairs: Tensor, scales: Tensor | None, weight: Fp8, ends: Tensor, tile: Tile | None = None
) -> Tensor:
    """Multiply pairs, sorted by expert, by their expert's FP8 matrix. Return [P, rows] bf16. pairs:
    bf16, or e4m3 codes with scales [P, groups of 128 columns] float32, both contiguous; weight:
    laid out for kernels; ends [experts] int32, ascending: end of each expert's rows. By default the
    number of pairs decides the tile."""
    tile = tile or (_FEW if are_few(len(pairs), weight.shape[0]) else MANY)
    operands = (scales, weight.values, weight.scales)
    return multiply(
        _fp8_grouped_kernel, pairs, operands, ends, weight.shape, tile, **scale_sizes(weight)
    )


@triton.jit
def _fp8_grouped_kernel(
    pairs,
    pair_scales,
    values,
    scales,
    ends,
    output,
    ALL_ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    PAIRS: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    SCALE_COLUMNS: tl.constexpr,
):
    tl.static_assert(SCALE_ROWS == 1 or SCALE_ROWS % ROWS == 0)
    grid: tl.constexpr = (COLUMNS + 127) // 128
    expert, pair, end = place_of_tile(ends, tl.program_id(1), EXPERTS, PADDED, PAIRS)
    if expert >= EXPERTS:
        return
    pair += tl.arange(0, PAIRS)

    expert = expert.to(tl.int64)
    first_row = tl.program_id(0) * ROWS
    row = first_row + tl.arange(0, ROWS)
    # Rows past the matrix read its last one and are not stored.
    kept = tl.minimum(row, ALL_ROWS - 1)
    column = tl.arange(0, 128)
    counts = (pair < end)[:, None]
    matrix = values + expert * ALL_ROWS * COLUMNS
    of_row = matrix + kept[None, :] * COLUMNS + column[:, None]
    of_pair = pairs + pair.to(tl.int64)[:, None] * COLUMNS + column[None, :]
    of_expert = scales_of(scales, expert, ALL_ROWS, COLUMNS, SCALE_ROWS, SCALE_COLUMNS)
    result = tl.zeros([PAIRS, ROWS], tl.float32)
    for begin in tl.range(0, COLUMNS, 128, num_stages=STAGES):
        if COLUMNS % 128:
            left = begin + column < COLUMNS
            weights = tl.load(of_row + begin, left[:, None], 0.0)
            inputs = tl.load(of_pair + begin, counts & left[None, :], 0.0)
        else:
            weights = tl.load(of_row + begin)
            inputs = tl.load(of_pair + begin, counts, 0.0)
        if pair_scales is None:
            part = tl.dot(inputs, turned(weights, tl.bfloat16))
        else:
            part = tl.dot(inputs, weights)
            at = pair_scales + pair.to(tl.int64) * grid + begin // 128
            part *= tl.load(at, pair < end, 0.0)[:, None]
        if SCALE_COLUMNS < COLUMNS:
            if SCALE_ROWS == 1:
                part *= tl.load(of_expert + kept * grid + begin // 128)[None, :]
            else:
                part *= tl.load(of_expert + first_row // SCALE_ROWS * grid + begin // 128)
        result += part
    if SCALE_COLUMNS >= COLUMNS:
        result *= tl.load(of_expert + kept)[None, :]
    at = output + pair.to(tl.int64)[:, None] * ALL_ROWS + row[None, :]
    tl.store(at, result.to(output.dtype.element_ty), counts & (row < ALL_ROWS)[None, :])


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time. They have the shapes of gate_up and
    down of 35B-A3B in blocks: a step of 128 requests, a chunk of 8192 tokens."""

    def spec(name: str, size: tuple[int, int], codes: bool) -> KernelSpec:
        rows, columns = size
        tile = MANY if codes else _FEW
        constants = tile.constants(256, rows, columns) | {
            "SCALE_ROWS": GROUP,
            "SCALE_COLUMNS": GROUP,
        }
        absent: dict[str, None] = {} if codes else {"pair_scales": None}
        fp32 = "scales pair_scales" if codes else "scales"
        return KernelSpec.of(
            f"moe_fp8_grouped_{name}_{'w8a8' if codes else 'w8a16'}",
            _fp8_grouped_kernel,
            {**constants, **absent},
            tile.warps,
            fp32=fp32,
            i32="ends",
            pairs="*fp8e4nv" if codes else "*bf16",
            values="*fp8e4nv",
        )

    shapes = {"gate_up": (1024, 2048), "down": (2048, 512)}
    return [spec(name, size, codes) for codes in (True, False) for name, size in shapes.items()]
