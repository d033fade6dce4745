"""Groups of tiles in a forward over prompts. Each group's FP8 pages are converted to numbers before
its tiles read them.

Every query head and every tile reads a key again, and converting its code costs as much as
multiplying it. So pages are converted once per layer, a few sequences at a time, and tiles read
pages of numbers. Planned once per forward on the host, the same for every layer.

The converted bytes are bounded by LEAST_KEYS, or by the longest sequence up to MOST_KEYS. Tiles of
a longer sequence read FP8 rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tasuki.model.config import DeltaNetConfig
from tasuki.pycache.layout import PAGE_TOKENS

from .long_context import MOST_KEYS

LEAST_KEYS = 2**16
"""Number of keys of FP8 pages converted together, at least. With 4 heads of 256 two-byte elements,
keys and values take 256 MiB."""

PlannedTile = tuple[int, int, int, int, int]
"""A tile of a prompt's rows: its first row, number of rows, sequence index, position of the first
row, and number of keys attended to elsewhere (in a block)."""


@dataclass(frozen=True)
class TileGroup:
    """A group of tiles and its converted FP8 pages, both on the device. tiles [n, 5] int32: see
    `PlannedTile`. places [N, 2] int32: sequence index and page number of each converted page. None:
    no page is converted. With places, a tile has an offset in place of its sequence index: page
    number plus offset is the index among the converted pages."""

    tiles: Tensor
    places: Tensor | None = None

    @cached_property
    def table(self) -> Tensor:
        """Return the page table of the converted pages, [N, 1] int32: their indices. REQUIRES:
        places is not None."""
        assert self.places is not None
        numbers = torch.arange(len(self.places), dtype=torch.int32, device=self.places.device)
        return numbers[:, None]


def tile_groups(tiles: Sequence[PlannedTile], device: torch.device) -> tuple[TileGroup, ...]:
    """Divide the tiles into groups by sequence, with bounded memory for each group's converted
    pages. Return the groups; each keeps the order of its tiles."""
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


def turned_bytes(config: DeltaNetConfig, tokens: int, dtype: torch.dtype) -> int:
    """Return the largest size in bytes of the converted pages, for contexts of up to `tokens`
    tokens. It is 0 unless dtype has 16 bits."""
    if dtype.itemsize != 2:
        return 0
    keys = min(max(LEAST_KEYS, tokens + -tokens % PAGE_TOKENS), MOST_KEYS)
    return 2 * keys * config.kv_heads * config.head_dim * dtype.itemsize


def on_device(rows: Sequence[Sequence[int]] | Tensor, device: torch.device) -> Tensor:
    """Return a copy of the rows on the device as int32. The copy to a GPU is asynchronous."""
    packed = torch.as_tensor(rows, dtype=torch.int32)
    if device.type == "cuda":
        packed = packed.pin_memory()
    return packed.to(device, non_blocking=True)


def _spans(tiles: Sequence[PlannedTile]) -> dict[int, range]:
    """Return the range of page numbers read by the tiles of each sequence, by sequence index."""
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
