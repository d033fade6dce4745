"""Division of a prompt forward's rows into tiles, one for each program of the attention kernel.

It is planned once per forward on the host, and is the same for every layer. It does not use page
ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from tasuki.model.config import DeltaNetConfig

from .long_context import ContextBlocks, block_rows_of, cudnn_attention
from .tile_groups import PlannedTile, TileGroup, on_device, tile_groups

_PAGES_A_SPLIT = 16


@dataclass(frozen=True)
class PrefillTiles:
    """The tiles (rows for one attention program) of one forward, the same for every layer.

    planned: the tiles, each with the number of keys already attended to in a block of `context`.
    Tiles with most remaining keys come first, because they take longest. tiles: the same as [N, 5]
    int32 on the device. rows: number of rows of a full tile. splits: number of parts of every
    tile's context; 1 if `context` has blocks.
    """

    planned: tuple[PlannedTile, ...]
    tiles: Tensor
    rows: int
    splits: int
    context: ContextBlocks

    @cached_property
    def groups(self) -> tuple[TileGroup, ...]:
        """Return the tiles in groups. The FP8 pages of one group are converted to numbers
        together."""
        return tile_groups(self.planned, self.tiles.device)

    @staticmethod
    def of(
        lengths: Sequence[int],
        context_lens: Sequence[int],
        config: DeltaNetConfig,
        dtype: torch.dtype,
        device: torch.device,
    ) -> "PrefillTiles":
        """Divide the rows of a forward into tiles, and return these. lengths: tokens of each
        sequence in this forward; context_lens: tokens of each sequence before this forward."""
        context = ContextBlocks((), tile_rows(dtype), cudnn_attention)
        if device.type == "cuda" and dtype.itemsize == 2:
            rows = block_rows_of(config, device)
            context = ContextBlocks.of(lengths, context_lens, rows, cudnn_attention)
        tiles = PrefillTiles.after(context, lengths, context_lens, dtype, device)
        if context.blocks:
            return tiles
        longest = max(map(sum, zip(lengths, context_lens, strict=True)))
        splits = _splits(len(tiles.tiles) * config.query_heads, longest, device)
        return replace(tiles, splits=splits)

    @staticmethod
    def after(
        context: ContextBlocks,
        lengths: Sequence[int],
        context_lens: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> "PrefillTiles":
        """Return tiles for the keys not attended to in the blocks of `context`. Their contexts are
        not split. Other arguments: see of()."""
        rows = tile_rows(dtype)
        served = context.served(rows)
        tiles: list[PlannedTile] = []
        start = 0
        for sequence, (length, before) in enumerate(zip(lengths, context_lens, strict=True)):
            tiles.extend(
                (
                    start + row,
                    min(rows, length - row),
                    sequence,
                    before + row,
                    served.get(start + row, 0),
                )
                for row in range(0, length, rows)
            )
            start += length
        tiles.sort(key=lambda tile: tile[4] - tile[3])
        return PrefillTiles(tuple(tiles), on_device(tiles, device), rows, 1, context)


def _splits(programs: int, longest: int, device: torch.device) -> int:
    """Return the number of parts of each tile's context: enough to fill the device, but each long
    enough for a program of its own. It is 1 on a CPU."""
    if device.type != "cuda":
        return 1
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    worthwhile = longest // (64 * _PAGES_A_SPLIT)
    return max(min(processors // programs, worthwhile), 1)


def tile_rows(dtype: torch.dtype) -> int:
    """Return the number of rows of a full tile, limited by a program's registers."""
    return 128 if dtype.itemsize == 2 else 16
