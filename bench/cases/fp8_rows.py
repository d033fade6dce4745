"""Cases of products of FP8 rows with FP8 weights, from few rows to prompts. Each is compared with
weights in FP8 alone, the library, bf16, and other tiles."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.bench.measure.timing import Work
from tasuki.model.ops.linear.fp8_activations import quantised
from tasuki.model.ops.linear.fp8_library import block_product, has_block_product
from tasuki.model.ops.linear.fp8_product import fp8_product
from tasuki.model.ops.linear.fp8_rows_product import fp8_rows_product, rows_tile
from tasuki.model.ops.linear.fp8_rows_reference import shares_of
from tasuki.model.ops.linear.product_tiles import Tile
from tasuki.model.weights.quantised_segments import Fp8

from .case import Case, Stage, turns_to_overflow
from .products import in_blocks

_MOST_TURNS = 12
_BATCHES = (16, 64, 128, 256, 512, 8192)
_MOST_STEP_ROWS = 512


def cases(stage: Stage) -> Iterator[Case]:
    """Yield the cases of the four products of a GDN layer of 9B."""
    hidden, width = stage.model.hidden, 12288
    shapes = (
        ("in_proj", width, hidden),
        ("out_proj", hidden, hidden),
        ("gate_up", 2 * width, hidden),
        ("down", hidden, width),
    )
    for name, rows, columns in shapes:
        turns = turns_to_overflow(rows * columns, _MOST_TURNS)
        plain = [stage.random(rows, columns) for _ in range(turns)]
        weights = [in_blocks(weight) for weight in plain]
        for batch in _BATCHES:
            yield _case(stage, f"{name}, {batch}", batch, plain, weights)


def _case(
    stage: Stage, name: str, batch: int, plain: Sequence[Tensor], weights: Sequence[Fp8]
) -> Case:
    rows, columns = weights[0].shape
    x = stage.random(batch, columns)
    codes, output = quantised(x), stage.random(batch, rows)

    def product(weight: Fp8, tile: Tile | None = None) -> object:
        return fp8_rows_product(codes, weight, output, tile=tile)

    others: dict[str, Sequence[Work]] = {
        _named(tile): [partial(product, weight, tile) for weight in weights]
        for tile in _tiles(batch, rows, columns)
    }
    others["bf16"] = [partial(functional.linear, x, weight) for weight in plain]
    if batch <= _MOST_STEP_ROWS:
        others["W8A16"] = [partial(fp8_product, x, weight) for weight in weights]
    if has_block_product(weights[0], torch.bfloat16):
        others["library"] = [partial(block_product, codes, weight) for weight in weights]
    return Case(
        f"FP8 rows, {name} rows, weights {rows} x {columns}",
        [partial(product, weight) for weight in weights],
        bytes=rows * columns + batch * (columns + 2 * rows),
        # Codes are multiplied at twice the rate of bf16.
        flops=batch * rows * columns,
        captured=others,
    )


def _tiles(batch: int, rows: int, columns: int) -> Iterator[Tile]:
    """Yield tiles beside the chosen one."""
    shares, chosen = shares_of(rows, columns), rows_tile(batch, rows, columns)
    by_batch = {
        16: (Tile(64, 16, shares, 4, 4), Tile(64, 16, shares, 10, 4), Tile(128, 16, shares, 4, 4)),
        64: (Tile(64, 64, shares, 5, 4), Tile(64, 64, shares, 3, 4), Tile(128, 64, shares, 4, 4)),
        128: (Tile(64, 128, shares, 3, 4), Tile(128, 64, shares, 4, 4), Tile(64, 64, shares, 4, 4)),
        256: (Tile(64, 128, shares, 3, 4), Tile(128, 64, shares, 3, 4), Tile(128, 128, 1, 3, 8)),
        512: (Tile(64, 128, 1, 3, 4), Tile(128, 128, 1, 4, 8), Tile(128, 128, shares, 3, 8)),
        8192: (Tile(128, 128, 1, 4, 8), Tile(128, 128, shares, 3, 8), Tile(64, 256, 1, 3, 8)),
    }
    for tile in dict.fromkeys(by_batch[batch]):
        if tile != chosen:
            yield tile


def _named(tile: Tile) -> str:
    return (
        f"{tile.rows}x{tile.batch}, {tile.split} shares, {tile.stages} stages, {tile.warps} warps"
    )
