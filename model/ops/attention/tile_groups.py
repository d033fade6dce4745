"""The FP8 pages turned to numbers in a forward over prompts, and the tiles reading them.

Every query head and every tile reads a key again, and turning its code costs as much as multiplying
it. So pages are turned once per layer, a few sequences at a time, and tiles read pages of numbers.
Planned once per forward on the host, the same for every layer.

The turned bytes are bounded by LEAST_KEYS, or by the longest sequence up to MOST_KEYS. Tiles of a
longer sequence read FP8 rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tasuki.model.config import ModelConfig
from tasuki.pycache.layout import PAGE_TOKENS

from .long_context import MOST_KEYS

LEAST_KEYS = 2**16
"""Least keys turned at once: 256 MiB with the values, of 4 heads of 256 elements of 2 bytes."""

PlannedTile = tuple[int, int, int, int, int]
"""A tile: first row, rows, sequence, position of the first row, keys attended elsewhere."""


@dataclass(frozen=True)
class TileGroup:
    """Tiles and the pages turned for them, both on the device. tiles [n, 5] int32, as
    `PlannedTile`. places [N, 2] int32: sequence and page number of each turned page, one after the
    other. With places, a tile has an offset instead of its sequence: from a page's number to its
    place among these. None: nothing is turned."""

    tiles: Tensor
    places: Tensor | None = None

    @cached_property
    def table(self) -> Tensor:
        """Return the table for turned pages, [N, 1] int32: their numbers. REQUIRES: places."""
        assert self.places is not None
        numbers = torch.arange(len(self.places), dtype=torch.int32, device=self.places.device)
        return numbers[:, None]


def tile_groups(tiles: Sequence[PlannedTile], device: torch.device) -> tuple[TileGroup, ...]:
    """Return all of the tiles in groups; each group keeps their order."""
    spans = _spans(tiles)
    groups: list[list[int]] = []
    room = 0
    for sequence, pages in spans.items():
        if len(pages) > room:
            groups.append([])
            room = max(LEAST_KEYS // PAGE_TOKENS, len(pages))
        groups[-1].append(sequence)
        room -= len(pages)
    return tuple(
        _group(tiles, {sequence: spans[sequence] for sequence in group}, device) for group in groups
    )


def turned_bytes(config: ModelConfig, tokens: int, dtype: torch.dtype) -> int:
    """Return the most bytes of turned pages for contexts of up to `tokens`."""
    if dtype.itemsize != 2:
        return 0
    keys = min(max(LEAST_KEYS, tokens + -tokens % PAGE_TOKENS), MOST_KEYS)
    return 2 * keys * config.kv_heads * config.head_dim * dtype.itemsize


def on_device(rows: Sequence[Sequence[int]] | Tensor, device: torch.device) -> Tensor:
    """Return the rows on the device, int32, copied without a wait."""
    packed = torch.as_tensor(rows, dtype=torch.int32)
    if device.type == "cuda":
        packed = packed.pin_memory()
    return packed.to(device, non_blocking=True)


def _spans(tiles: Sequence[PlannedTile]) -> dict[int, range]:
    """Return each sequence's pages read by its tiles."""
    spans: dict[int, range] = {}
    for _, rows, sequence, position, elsewhere in tiles:
        first, stop = elsewhere // PAGE_TOKENS, -(-(position + rows) // PAGE_TOKENS)
        known = spans.get(sequence, range(first, stop))
        spans[sequence] = range(min(known.start, first), max(known.stop, stop))
    return spans


def _group(
    tiles: Sequence[PlannedTile], spans: dict[int, range], device: torch.device
) -> TileGroup:
    if max(map(len, spans.values())) > MOST_KEYS // PAGE_TOKENS:
        return TileGroup(on_device([tile for tile in tiles if tile[2] in spans], device))
    shifts, places = {}, []
    start = 0
    for sequence, pages in spans.items():
        shifts[sequence] = start - pages.start
        start += len(pages)
        number = torch.arange(pages.start, pages.stop)
        places.append(torch.stack([torch.full_like(number, sequence), number], dim=1))
    shifted = [
        (row, rows, shifts[sequence], position, elsewhere)
        for row, rows, sequence, position, elsewhere in tiles
        if sequence in shifts
    ]
    return TileGroup(on_device(shifted, device), on_device(torch.cat(places), device))
