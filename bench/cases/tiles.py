"""Cases of products with FP8 weights: other tile sizes compared with the chosen one. The results
fill the tables of `model/ops/linear/fp8_product.py`."""

from collections.abc import Iterator
from functools import partial

from tasuki.model.ops.linear.fp8_product import fp8_product, fp8_product_swiglu, tile_for
from tasuki.model.ops.linear.product_tiles import Tile

from .case import Case, Stage, turns_to_overflow
from .products import in_blocks

_MOST_TURNS = 16
_BATCHES = (16, 32, 64, 128, 256)


def cases(stage: Stage) -> Iterator[Case]:
    """Yield the cases of the 9B shape. Each compares half and twice the split-K shares, other
    pipeline stages, and tiles with twice the rows of x or of weights."""
    hidden, width = stage.model.hidden, 12288
    shapes = (
        ("out_proj", hidden, hidden),
        ("down", hidden, width),
        ("in_proj", width, hidden),
        ("gate_up", 2 * width, hidden),
    )
    for name, rows, columns in shapes:
        turns = turns_to_overflow(rows * columns, _MOST_TURNS)
        weights = [in_blocks(stage.random(rows, columns)) for _ in range(turns)]
        product = fp8_product_swiglu if name == "gate_up" else fp8_product
        for batch in _BATCHES:
            x = stage.random(batch, columns)
            for tile in _around(tile_for(batch, rows, columns, x.dtype)):
                yield Case(
                    f"FP8 {name}, {batch} rows, {tile}",
                    [partial(product, x, weight, tile=tile) for weight in weights],
                    bytes=rows * columns + 2 * batch * (rows + columns),
                )


def _around(tile: Tile) -> Iterator[Tile]:
    yield tile
    for split in (tile.split // 2, 2 * tile.split):
        if split:
            yield Tile(tile.rows, tile.batch, split, tile.stages, tile.warps)
    for stages in (tile.stages - 1, tile.stages + 1):
        yield Tile(tile.rows, tile.batch, tile.split, stages, tile.warps)
    yield Tile(tile.rows, 2 * tile.batch, tile.split, 2, tile.warps)
    yield Tile(2 * tile.rows, tile.batch, tile.split, tile.stages, 2 * tile.warps)
    yield Tile(2 * tile.rows, tile.batch, 2 * tile.split, tile.stages, 2 * tile.warps)
