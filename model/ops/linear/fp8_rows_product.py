"""Products of FP8 rows (e4m3 codes, a scale for 128 columns of a row) with FP8 weights (W8A8), for
any number of rows.

The matrix instruction multiplies codes. Both operands come by the tensor copy engine. The sum of
128 columns is one chain of instructions. It is scaled by row scale times weight scale, and added
in float32 by one fused multiply-add. The columns have a number of shares that depends on the
weight's shape alone, and the shares' sums are added in order. A program has one share, or all of
them one after another. So a row's bits depend neither on other rows nor on the tile. They equal the
library's bits for weights of one share.

Up to 32 rows of x are the second operand, because the first one has 64 rows. Smaller tiles would be
multiplied by another instruction, whose bits differ. Programs of the same
weights are neighbours, so weights are read from memory once. Plain rows below the FP8 rows (a tail:
b and a of in_proj) take plain x and have programs of their own in the same launch. Reference, to
the bit on Hopper: `fp8_rows_reference.rows_product`.
"""

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from tasuki.model.weights.quantised_segments import Fp8
from tasuki.utils.triton.instructions import dependent
from tasuki.utils.triton.kernel_spec import KernelSpec

from .fp8_activations import Fp8Rows
from .fp8_rows_reference import shares_of
from .fp8_scales import GROUP, scale_sizes
from .product_tiles import Tile, along, are_copied, input_tile, multiply, stored, weight_tile

MOST_SECOND = 32
"""Largest number of rows of x in a tile with weights as the first operand."""
_NEIGHBOURS = tl.constexpr(16)
"""Number of tiles of x's rows whose programs with the same weights are neighbours."""
_TAIL_ROWS = tl.constexpr(64)
_TAIL_BATCH = tl.constexpr(16)
"""Rows of weights and of x in a tile of the tail, for every tile of the FP8 rows. A tail has few
rows, so small tiles share out its columns' latency among programs."""
_TAIL_STAGES = tl.constexpr(5)
_PROGRAMS = 256
"""Least number of programs with 128 rows of x: two for each multiprocessor."""
_STEP_ROWS = 512
"""Largest number of x's rows for tiles with a share each."""
_LEAST_FIRST = 64
"""Number of rows of the first operand in Hopper's asynchronous instruction. Fewer rows would be
multiplied by another instruction, with other bits."""


@dataclass(frozen=True)
class Tail:
    """Plain rows below the FP8 rows of a matrix. x [B, columns]: rows before quantisation, any row
    stride. values [tail rows, columns]: contiguous, in x's dtype."""

    x: Tensor
    values: Tensor


def rows_tile(batch: int, rows: int, columns: int) -> Tile:
    """Return a tile chosen by the shapes alone, so a captured graph holds one of them. Tuned for
    the layers of 9B on an H200. Two programs of four warps on a multiprocessor are faster than one
    of eight."""
    shares = shares_of(rows, columns)
    is_narrow = shares > 1
    if batch <= 16:
        return Tile(64, 16, shares, 10 if is_narrow else 6, 4)
    if batch <= 32:
        return Tile(64, 32, shares, 8 if is_narrow else 5, 4)
    if batch <= 64:
        return Tile(64, 64, shares, 6 if is_narrow else 4, 4)
    if is_narrow:
        # With larger tiles, sums of a share, of all, and of a block would fill the registers.
        return Tile(64, 128, shares, 4, 4) if batch <= _STEP_ROWS else Tile(64, 128, 1, 4, 8)
    if triton.cdiv(rows, 64) * triton.cdiv(batch, 128) < _PROGRAMS:
        return Tile(64, 64, 1, 4, 4)
    return Tile(64, 128, 1, 3, 4)


def fp8_rows_product(
    x: Fp8Rows,
    weight: Fp8,
    output: Tensor,
    tail: Tail | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """Multiply the valid FP8 rows x [B, columns] by the FP8 weight [rows, columns] and the plain
    tail, transposed. Write the product into output [B, rows + tail rows], any row stride, and
    return it. weight: laid out for kernels. By default the tile is from rows_tile(). REQUIRES:
    scales of one group of columns are neighbours in memory; the tile's split is 1 or
    shares_of(weight)."""
    rows, columns = weight.shape
    tile = tile or rows_tile(x.count, rows, columns)
    shares = shares_of(rows, columns)
    assert tile.split in (1, shares)
    assert (tile.rows if tile.batch <= MOST_SECOND else tile.batch) >= _LEAST_FIRST

    def launch(result: Tensor) -> None:
        _launch(x, weight, tail, result, tile, shares, rows)

    return multiply(launch, output, output.shape[1], tile, output)


def tail_product(x: Fp8Rows, weight: Fp8, output: Tensor, tail: Tail) -> None:
    """Multiply the tail alone, as fp8_rows_product() does. Write it into the last columns of output
    [B, rows + tail rows]."""
    rows, columns = weight.shape
    tile = rows_tile(x.count, rows, columns)
    whole = Tile(tile.rows, tile.batch, 1, tile.stages, tile.warps)
    _launch(x, weight, tail, output[:, rows:], whole, shares_of(rows, columns), 0)


def _launch(
    x: Fp8Rows,
    weight: Fp8,
    tail: Tail | None,
    output: Tensor,
    tile: Tile,
    shares: int,
    rows: int,
) -> None:
    """Launch the kernel. rows: number of FP8 rows to multiply, all or none."""
    columns = weight.shape[1]
    tail_rows = 0 if tail is None else len(tail.values)
    programs = triton.cdiv(rows, tile.rows) * triton.cdiv(x.count, tile.batch)
    of_tail = triton.cdiv(tail_rows, _TAIL_ROWS.value) * triton.cdiv(x.count, _TAIL_BATCH.value)
    is_copied = are_copied(x.values, weight.values)
    _fp8_rows_product_kernel[(programs + of_tail, tile.split)](
        x.values,
        weight.values,
        *(_tiles(x.values, weight.values, tile) if is_copied else (None, None)),
        x.scales,
        weight.scales,
        None if tail is None else tail.x,
        None if tail is None else tail.values,
        output,
        0 if tail is None else tail.x.stride(0),
        output.stride(-2),
        x.scales.stride(1),
        x.count,
        rows,
        tail_rows,
        SHARES=shares,
        WEIGHTS_FIRST=tile.batch <= MOST_SECOND,
        **tile.constants(columns),
        **scale_sizes(weight),
        **dependent(x.values),
        num_warps=tile.warps,
    )


def _tiles(x: Tensor, values: Tensor, tile: Tile) -> tuple[TensorDescriptor, TensorDescriptor]:
    """Return the descriptors with which the kernel loads tiles of x and of the weights, 128 columns
    each."""
    of_x, of_values = _boxes(tile)
    return (
        TensorDescriptor(x, list(x.shape), list(x.stride()), of_x),
        TensorDescriptor(values, list(values.shape), list(values.stride()), of_values),
    )


def _boxes(tile: Tile) -> tuple[list[int], list[int]]:
    """Return the box sizes for `_tiles`, of x and of the weights: rows and columns."""
    return [tile.batch, GROUP], [tile.rows, GROUP]


@triton.jit
def _multiplied(weights, inputs, WEIGHTS_FIRST: tl.constexpr):
    if WEIGHTS_FIRST:
        return tl.dot(weights, inputs, input_precision="ieee")
    else:
        return tl.dot(inputs, weights, input_precision="ieee")


@triton.jit
def _none(BATCH: tl.constexpr, ROWS: tl.constexpr, WEIGHTS_FIRST: tl.constexpr):
    """Return zeros in the shape of a tile's sums."""
    if WEIGHTS_FIRST:
        return tl.zeros([ROWS, BATCH], tl.float32)
    else:
        return tl.zeros([BATCH, ROWS], tl.float32)


@triton.jit
def _place(number, tiles, batch, BATCH: tl.constexpr):
    """Return (tile of weight rows, tile of x's rows) of program `number` among `tiles` times the
    tiles of x's rows."""
    of_x = (batch + BATCH - 1) // BATCH
    first = number // (_NEIGHBOURS * tiles) * _NEIGHBOURS
    left = number - first * tiles
    beside = tl.minimum(of_x - first, _NEIGHBOURS)
    return left // beside, first + left % beside


@triton.jit
def _multiply_tail(
    number,
    x,
    tail,
    output,
    x_stride,
    output_stride,
    batch,
    tail_rows,
    blocks,
    COLUMNS: tl.constexpr,
    SPLIT: tl.constexpr,
    SHARES: tl.constexpr,
):
    """Multiply one tile of x's rows by one tile of the tail's rows, in the order of the shares."""
    share = (blocks + SHARES - 1) // SHARES
    place, of_x = _place(number, (tail_rows + _TAIL_ROWS - 1) // _TAIL_ROWS, batch, _TAIL_BATCH)
    row = place * _TAIL_ROWS + tl.arange(0, _TAIL_ROWS)
    item = of_x * _TAIL_BATCH + tl.arange(0, _TAIL_BATCH)
    # Rows past the tail read its last row and are not stored.
    held = tl.minimum(row, tail_rows - 1)
    total = _none(_TAIL_BATCH, _TAIL_ROWS, True)
    for number_of_share in tl.static_range(SHARES // SPLIT):
        begin = (tl.program_id(1) * (SHARES // SPLIT) + number_of_share) * share
        result = _none(_TAIL_BATCH, _TAIL_ROWS, True)
        for block in tl.range(2 * begin, 2 * min(begin + share, blocks), num_stages=_TAIL_STAGES):
            column = block * 64 + tl.arange(0, 64)
            numbers = weight_tile(tail, held, column, COLUMNS, True)
            inputs = input_tile(x, item, batch, x_stride, column, COLUMNS, True)
            result += _multiplied(numbers, inputs, True)
        total += result
    stored(output, total, row, tail_rows, item, batch, output_stride, True)


@triton.jit(do_not_specialize=["x_stride", "scale_stride", "batch", "rows", "tail_rows"])
def _fp8_rows_product_kernel(
    codes,
    values,
    code_tiles,
    value_tiles,
    row_scales,
    scales,
    x,
    tail,
    output,
    x_stride,
    output_stride,
    scale_stride,
    batch,
    rows,
    tail_rows,
    COLUMNS: tl.constexpr,
    BATCH: tl.constexpr,
    ROWS: tl.constexpr,
    SPLIT: tl.constexpr,
    SHARES: tl.constexpr,
    STAGES: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    SCALE_COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Multiply FP8 rows by FP8 weights, and x by a tail. Write output [batch, rows + tail_rows], or
    one such part for each share of the columns."""
    blocks: tl.constexpr = (COLUMNS + 127) // 128
    share: tl.constexpr = (blocks + SHARES - 1) // SHARES
    own: tl.constexpr = SHARES // SPLIT
    tl.static_assert(SCALE_ROWS == 1 or SCALE_ROWS % ROWS == 0)
    number = tl.program_id(0)
    of_tail = 0
    if tail is not None:
        items = (batch + _TAIL_BATCH - 1) // _TAIL_BATCH
        of_tail = (tail_rows + _TAIL_ROWS - 1) // _TAIL_ROWS * items
    offset = tl.arange(0, ROWS)
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    if number >= of_tail:
        total = _none(BATCH, ROWS, WEIGHTS_FIRST)
        place, of_x = _place(number - of_tail, (rows + ROWS - 1) // ROWS, batch, BATCH)
        first = place * ROWS
        item = of_x * BATCH + tl.arange(0, BATCH)
        # Rows past the matrix read its last row and are not stored.
        row = tl.minimum(first + offset, rows - 1)
        for number_of_share in tl.static_range(own):
            begin = (tl.program_id(1) * own + number_of_share) * share
            result = _none(BATCH, ROWS, WEIGHTS_FIRST)
            for block in tl.range(begin, min(begin + share, blocks), num_stages=STAGES):
                at = row_scales + block * scale_stride + item
                factor = along(tl.load(at, item < batch, 0.0), not WEIGHTS_FIRST)
                if SCALE_COLUMNS < COLUMNS:
                    if SCALE_ROWS == 1:
                        of_row = tl.load(scales + row * blocks + block)
                        factor = factor * along(of_row, WEIGHTS_FIRST)
                    else:
                        factor = factor * tl.load(scales + first // SCALE_ROWS * blocks + block)
                if code_tiles is not None:
                    inputs = code_tiles.load([of_x * BATCH, block * 128])
                    weights = value_tiles.load([first, block * 128])
                    if WEIGHTS_FIRST:
                        inputs = inputs.T
                    else:
                        weights = weights.T
                else:
                    column = block * 128 + tl.arange(0, 128)
                    weights = weight_tile(values, row, column, COLUMNS, WEIGHTS_FIRST)
                    inputs = input_tile(codes, item, batch, COLUMNS, column, COLUMNS, WEIGHTS_FIRST)
                result = tl.fma(_multiplied(weights, inputs, WEIGHTS_FIRST), factor, result)
            total += result
        if SCALE_COLUMNS >= COLUMNS:
            total *= along(tl.load(scales + row), WEIGHTS_FIRST)
        stored(output, total, first + offset, rows, item, batch, output_stride, WEIGHTS_FIRST)
    elif tail is not None:
        _multiply_tail(
            number, x, tail, output + rows, x_stride, output_stride, batch, tail_rows, blocks,
            COLUMNS, SPLIT, SHARES,
        )  # fmt: skip


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, for out_proj, gate_up and in_proj of
    9B, block scales, at each size of batch."""

    def spec(name: str, batch: int, rows: int, columns: int, **absent: object) -> KernelSpec:
        tile = rows_tile(batch, rows, columns)
        of_x, of_values = _boxes(tile)
        tiles: dict[str, Any] = {
            "code_tiles": f"tensordesc<fp8e4nv{of_x}>",
            "value_tiles": f"tensordesc<fp8e4nv{of_values}>",
        }
        constants = tile.constants(columns) | {
            "SHARES": shares_of(rows, columns),
            "WEIGHTS_FIRST": tile.batch <= MOST_SECOND,
            "SCALE_ROWS": GROUP,
            "SCALE_COLUMNS": GROUP,
            "DEPENDENT": True,
        }
        return KernelSpec.of(
            f"fp8_rows_product_{name}_{batch}",
            _fp8_rows_product_kernel,
            constants | absent,
            tile.warps,
            fp32="row_scales scales output" if tile.split > 1 else "row_scales scales",
            values="*fp8e4nv",
            codes="*fp8e4nv",
            **tiles,
        )

    return [
        found
        for batch in (16, 32, 64, 256, 8192)
        for found in (
            spec("out_proj", batch, 4096, 4096, x=None, tail=None),
            spec("gate_up", batch, 24576, 4096, x=None, tail=None),
            spec("in_proj", batch, 12288, 4096),
        )
    ]
