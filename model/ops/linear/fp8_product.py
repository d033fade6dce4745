"""Products of many rows with FP8 weights as stored (W8A16): weights are streamed through the matrix
instructions of the activations' dtype.

A program owns a tile of weight rows and of x's rows, and a share of the columns. Weights are
converted in registers (e4m3.py) and multiplied in bf16 (float32: IEEE); the sum of 128 columns gets
its scale in float32. Tiles are tall, because every tile reads x again from the L2 cache, hardly
faster than memory. A narrow output has few tiles, so its columns are shared out among programs, and
split_sums.py adds up their sums. No two warps convert the same weights. Up to 16 rows of x are the
first operand, as an instruction takes 16 rows. With more rows the weights are the first operand, in
registers, and x is read from shared memory, once for all warps. Then operands come by the tensor
copy engine, and registers suffice for one more program per multiprocessor. The order of a row's
sums depends on no other row. So with the same tile a row's result is the same at every batch size.

With SwiGLU a tile has rows of gate and the matching rows of up. Plain rows below the FP8 rows (a
tail: b and a of in_proj) have programs of their own in the same launch. Reference:
`reference.product`.
"""

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from tasuki.model.weights.quantised_segments import Fp8
from tasuki.utils.triton.instructions import HAS_INSTRUCTIONS, dependent
from tasuki.utils.triton.kernel_spec import KernelSpec

from .e4m3 import turned, turned_pairs
from .fp8_scales import GROUP, scale_sizes
from .product_tiles import Tile, along, are_copied, input_tile, multiply, stored, weight_tile
from .split_sums import joined_swiglu

MOST_SECOND = 16
"""Largest number of rows of x for a product with weights as the second operand."""
_PROGRAMS = 256
"""Least number of programs: two per multiprocessor, so one converts weights while the other
waits."""
_LEAST_BLOCKS = 4
"""Least number of 128-column blocks in a program's share, because each program fills and drains its
pipeline once."""
_TAIL_STAGES = tl.constexpr(4)
"""Number of pipeline stages, of 64 columns each, for a tail (plain rows). Its numbers are twice as
long as codes, so it takes no more memory than FP8 tiles."""
_TALL = 128
"""Number of x's rows in the tallest tile."""
_TALL_STAGES = 3
_EXACT = Tile(32, 16, 1, 2, 4)
"""Tile for float32. Its operands take twice the memory and use no matrix instruction."""


def split_for(tiles: int, columns: int) -> int:
    """Return the number of shares of the columns, a power of two. It doubles until there are enough
    programs, or until a share would have too few columns."""
    split = 1
    while tiles * split < _PROGRAMS and columns >= 2 * split * _LEAST_BLOCKS * GROUP:
        split *= 2
    return split


def tallest(device: torch.device) -> int:
    """Return the number of x's rows in the tallest tile that fits in shared memory. Ada and the
    smaller Blackwells have 100 KiB per multiprocessor."""
    if device.type != "cuda":
        return _TALL
    room = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor
    stage = GROUP * (64 + 2 * _TALL)
    return _TALL if room > _TALL_STAGES * stage else 64


def tile_for(batch: int, rows: int, columns: int, dtype: torch.dtype, most: int = _TALL) -> Tile:
    """Return a tile chosen by shapes and dtype alone, so a captured graph holds one of them.

    Tuned for the layers of 9B in sequence on an H200. The next kernel begins while the last
    programs of a wide product run. So a narrow product has two programs per multiprocessor, with
    too little memory left for a third. A batch above 64 rows gets tiles of 128 rows in two cases,
    to convert weights half as often. In one case tiles are few, and their shares fill the
    multiprocessors once. In the other tiles are so many that few multiprocessors are idle at the
    end. most: largest number of x's rows in a tile, from tallest().
    """
    if dtype is not torch.bfloat16:
        return _EXACT
    tiles = triton.cdiv(rows, 64)
    split = split_for(tiles, columns)
    is_narrow = split > 2
    if batch <= MOST_SECOND:
        return Tile(64, 16, split, 8 if is_narrow else 8 - 2 * split, 4)
    if batch <= 32:
        return Tile(64, 32, split, 6 if is_narrow else 4, 4)
    if batch <= 64:
        return Tile(64, 64, split, 4 if is_narrow else 3, 4)
    tall = None
    if most >= _TALL:
        tall = _tall_tile(tiles * triton.cdiv(batch, _TALL), columns, is_narrow)
    return tall or Tile(64, 64, split_for(tiles * triton.cdiv(batch, 64), columns), 3, 4)


def _tall_tile(tiles: int, columns: int, is_narrow: bool) -> Tile | None:
    """Return a tile with _TALL rows of x; None if too many multiprocessors would be idle. tiles:
    number of such tiles in the product."""
    if is_narrow:
        return Tile(64, _TALL, split_for(tiles, columns), _TALL_STAGES, 4)
    split = 1 if tiles >= 2 * _PROGRAMS else 2
    return Tile(64, _TALL, split, _TALL_STAGES, 4) if tiles * split >= 2 * _PROGRAMS else None


def tile_of_prompts(dtype: torch.dtype) -> Tile:
    """Return the tile for prompts. It is the same for every length, so the first prompt compiles
    its kernel."""
    return Tile(64, 64, 1, 3, 4) if dtype is torch.bfloat16 else _EXACT


def fp8_product(
    x: Tensor,
    weight: Fp8,
    output: Tensor | None = None,
    tile: Tile | None = None,
    tail: Tensor | None = None,
) -> Tensor:
    """Return x times the FP8 weight and the plain tail, transposed: [B, rows + tail rows] in x's
    dtype. x: [B, columns], any row stride. weight: [rows, columns], laid out for kernels. tail:
    plain rows below the FP8 rows, [tail rows, columns] contiguous in x's dtype. output: tensor to
    write instead of new memory, any row stride. By default the tile is from tile_for()."""
    rows, columns = weight.shape
    tile = tile or tile_for(x.shape[0], rows, columns, x.dtype, tallest(x.device))
    launch = partial(_launch, x, weight, tail, tile=tile)
    return multiply(launch, x, rows + (0 if tail is None else len(tail)), tile, output)


def fp8_product_swiglu(x: Tensor, gate_up: Fp8, tile: Tile | None = None) -> Tensor:
    """Return silu(gate) * up, [B, width] in x's dtype, for the product of x with gate_up [2 *
    width, columns]. The product is not rounded in between. By default the tile is from
    tile_for()."""
    rows, columns = gate_up.shape
    tile = tile or tile_for(x.shape[0], rows, columns, x.dtype, tallest(x.device))
    output = x.new_empty(x.shape[0], rows // 2)
    # A tile's rows of gate share a scale, and so do those of up.
    if tile.split == 1 and rows // 2 % gate_up.block_rows == 0:
        _launch(x, gate_up, None, output, tile, swiglu=True)
    else:
        parts = x.new_empty(tile.split, x.shape[0], rows, dtype=torch.float32)
        _launch(x, gate_up, None, parts, tile)
        joined_swiglu(parts, output)
    return output


def _launch(
    x: Tensor,
    weight: Fp8,
    tail: Tensor | None,
    output: Tensor,
    tile: Tile,
    *,
    swiglu: bool = False,
) -> None:
    batch, (rows, columns) = len(x), weight.shape
    tail_rows = 0 if tail is None else len(tail)
    weights_first = tile.batch > MOST_SECOND
    is_copied = weights_first and are_copied(x, weight.values)
    tiles = triton.cdiv(rows, tile.rows) + triton.cdiv(tail_rows, tile.rows)
    _fp8_product_kernel[(tiles, tile.split, triton.cdiv(batch, tile.batch))](
        x,
        weight.values,
        *(_tiles(x, weight.values, tile, swiglu=swiglu) if is_copied else (None, None)),
        weight.scales,
        tail,
        output,
        x.stride(0),
        output.stride(-2),
        batch,
        rows,
        tail_rows,
        WEIGHTS_FIRST=weights_first,
        SWIGLU=swiglu,
        **tile.constants(columns),
        **scale_sizes(weight),
        **dependent(x),
        num_warps=tile.warps,
    )


def _tiles(
    x: Tensor, values: Tensor, tile: Tile, *, swiglu: bool
) -> tuple[TensorDescriptor, TensorDescriptor]:
    """Return the descriptors with which the kernel loads tiles of x and of the weights, 128 columns
    each. With SwiGLU, a tile of weights has rows of gate above rows of up."""
    of_x, of_values = _boxes(tile, swiglu=swiglu)
    halves = values.unflatten(0, (of_values[0], -1))
    return (
        TensorDescriptor(x, list(x.shape), list(x.stride()), of_x),
        TensorDescriptor(values, list(halves.shape), list(halves.stride()), of_values),
    )


def _boxes(tile: Tile, *, swiglu: bool) -> tuple[list[int], list[int]]:
    """Return the box sizes for `_tiles`. For x: rows and columns. For the weights: number of parts
    (gate and up), rows of each part, and columns."""
    parts = 2 if swiglu else 1
    return [tile.batch, GROUP], [parts, tile.rows // parts, GROUP]


@triton.jit
def _scale(at, ASIDE: tl.constexpr):
    """Load the scale at address `at`. ASIDE: load it outside the loop's pipeline. Otherwise, with
    tiles from the copy engine, the pipeline would load it through shared memory behind a barrier of
    its own."""
    if ASIDE:
        return tl.inline_asm_elementwise(
            "ld.global.nc.f32 $0, [$1];", "=f,l", [at], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.load(at)


@triton.jit
def _multiplied(weights, inputs, WEIGHTS_FIRST: tl.constexpr):
    if WEIGHTS_FIRST:
        return tl.dot(weights, inputs, input_precision="ieee")
    else:
        return tl.dot(inputs, weights, input_precision="ieee")


@triton.jit(do_not_specialize=["batch", "rows", "tail_rows"])
def _fp8_product_kernel(
    x,
    values,
    x_tiles,
    value_tiles,
    scales,
    tail,
    output,
    x_stride,
    output_stride,
    batch,
    rows,
    tail_rows,
    COLUMNS: tl.constexpr,
    BATCH: tl.constexpr,
    ROWS: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
    WEIGHTS_FIRST: tl.constexpr,
    SWIGLU: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    SCALE_COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Multiply x by FP8 weights and a tail. Write output [batch, rows + tail_rows], or one such
    part for each share of the columns; with SWIGLU [batch, rows / 2]."""
    blocks: tl.constexpr = (COLUMNS + 127) // 128
    share: tl.constexpr = (blocks + SPLIT - 1) // SPLIT
    TALL: tl.constexpr = ROWS // 2 if SWIGLU else ROWS
    tl.static_assert(SCALE_ROWS == 1 or SCALE_ROWS % TALL == 0)
    ASIDE: tl.constexpr = HAS_INSTRUCTIONS and x_tiles is not None
    begin = tl.program_id(1) * share
    end = min(begin + share, blocks)
    item = tl.program_id(2) * BATCH + tl.arange(0, BATCH)
    offset = tl.arange(0, ROWS)
    number = tl.program_id(0)
    if tail is not None:
        number -= (tail_rows + ROWS - 1) // ROWS
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    if WEIGHTS_FIRST:
        result = tl.zeros([ROWS, BATCH], tl.float32)
    else:
        result = tl.zeros([BATCH, ROWS], tl.float32)
    if number >= 0:
        first = number * TALL
        # Rows past the matrix read its last row and are not stored.
        row = tl.minimum(first + offset % TALL + offset // TALL * (rows // 2), rows - 1)
        for block in tl.range(begin, end, num_stages=STAGES):
            if SCALE_COLUMNS >= COLUMNS:
                factor = 1.0
            elif SCALE_ROWS == 1:
                factor = along(_scale(scales + row * blocks + block, ASIDE), WEIGHTS_FIRST)
            else:
                factor = _scale(scales + first // SCALE_ROWS * blocks + block, ASIDE)
                if SWIGLU:
                    other = first + rows // 2
                    other = _scale(scales + other // SCALE_ROWS * blocks + block, ASIDE)
                    factor = along(tl.where(offset < TALL, factor, other), WEIGHTS_FIRST)
            if x_tiles is not None:
                codes = value_tiles.load([0, first, block * 128]).reshape([ROWS, 128])
                inputs = x_tiles.load([tl.program_id(2) * BATCH, block * 128]).T
            else:
                column = block * 128 + tl.arange(0, 128)
                codes = weight_tile(values, row, column, COLUMNS, WEIGHTS_FIRST)
                inputs = input_tile(x, item, batch, x_stride, column, COLUMNS, WEIGHTS_FIRST)
            if WEIGHTS_FIRST:
                weights = turned_pairs(codes, inputs.dtype)
            else:
                weights = turned(codes, inputs.dtype)
            result += _multiplied(weights, inputs, WEIGHTS_FIRST) * factor
        if SCALE_COLUMNS >= COLUMNS:
            result *= along(tl.load(scales + row), WEIGHTS_FIRST)
        if SWIGLU:
            if WEIGHTS_FIRST:
                gate, up = tl.split(result.reshape([2, TALL, BATCH]).permute(1, 2, 0))
            else:
                gate, up = tl.split(result.reshape([BATCH, 2, TALL]).permute(0, 2, 1))
            activation = gate * tl.sigmoid(gate) * up
            shown = first + tl.arange(0, TALL)
            stored(output, activation, shown, rows // 2, item, batch, output_stride, WEIGHTS_FIRST)
        else:
            stored(output, result, first + offset, rows, item, batch, output_stride, WEIGHTS_FIRST)
    elif tail is not None:
        first = tl.program_id(0) * ROWS
        row = tl.minimum(first + offset, tail_rows - 1)
        for block in tl.range(2 * begin, 2 * end, num_stages=_TAIL_STAGES):
            column = block * 64 + tl.arange(0, 64)
            numbers = weight_tile(tail, row, column, COLUMNS, WEIGHTS_FIRST)
            inputs = input_tile(x, item, batch, x_stride, column, COLUMNS, WEIGHTS_FIRST)
            result += _multiplied(numbers, inputs, WEIGHTS_FIRST)
        stored(
            output + rows, result, first + offset, tail_rows, item, batch, output_stride,
            WEIGHTS_FIRST,
        )  # fmt: skip


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, for out_proj, gate_up and in_proj of
    9B, block scales, at each size of batch."""

    def spec(name: str, batch: int, rows: int, columns: int, **absent: object) -> KernelSpec:
        tile = tile_for(batch, rows, columns, torch.bfloat16)
        weights_first, swiglu = tile.batch > MOST_SECOND, name == "gate_up"
        tiles: dict[str, Any] = {}
        if weights_first:
            of_x, of_values = _boxes(tile, swiglu=swiglu)
            tiles = {
                "x_tiles": f"tensordesc<bf16{of_x}>",
                "value_tiles": f"tensordesc<fp8e4nv{of_values}>",
            }
        else:
            absent |= {"x_tiles": None, "value_tiles": None}
        constants = tile.constants(columns) | {
            "WEIGHTS_FIRST": weights_first,
            "SWIGLU": swiglu,
            "SCALE_ROWS": GROUP,
            "SCALE_COLUMNS": GROUP,
            "DEPENDENT": True,
        }
        return KernelSpec.of(
            f"fp8_product_{name}_{batch}",
            _fp8_product_kernel,
            constants | absent,
            tile.warps,
            fp32="scales output" if tile.split > 1 else "scales",
            values="*fp8e4nv",
            **tiles,
        )

    return [
        found
        for batch in (16, 32, 64, 256)
        for found in (
            spec("out_proj", batch, 4096, 4096, tail=None),
            spec("gate_up", batch, 24576, 4096, tail=None),
            spec("in_proj", batch, 12288, 4096),
        )
    ]
