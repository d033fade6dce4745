"""Table of the numbers of every published layout and of every link between ranks.

`layout_table.json` was written by the code before layouts were declared as parts. Tests compare
today's numbers with it. `python -m tests.cache.layout_table` prints a new table.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tasuki.model.families.qwen3_5.published import PUBLISHED
from tasuki.pycache.layout import CacheLayout, rank_layout
from tasuki.pycache.parts import FP8_ROWS
from tasuki.transfer.chunks.chunk import ChunkHeader
from tasuki.transfer.chunks.descriptors import TransferUnits, chunk_bytes
from tasuki.transfer.chunks.digest import ArenaChunk, ChunkRows, chunk_geometry, chunk_rows
from tasuki.transfer.precision.wire_layout import WireUnits
from tasuki.transfer.protocol.contract import Contract
from tasuki.transfer.ranks.head_rows import HeadRows
from tasuki.transfer.ranks.ranked_source import RankedSegments
from tasuki.transfer.ranks.region import RankSpans
from tasuki.transfer.settings import Precision, WirePrecision
from tests.harness.qwen35 import published_or_folder

TABLE = Path(__file__).with_name("layout_table.json")
RANKS = (1, 2, 4)
SLABS = 3
_SIZES = ("block_bytes", "page_bytes", "slot_bytes", "slab_bytes", "region_stride")
_COUNTS = ("blocks_per_slab", "pages_per_slab", "draft_layers")
_WHOLE = "9b"
"""The shape with all numbers in the table. Others have the sums of them."""


@dataclass(frozen=True)
class Shape:
    """A published shape as stored: with drafts or without, in these dtypes."""

    model: str
    drafts: int
    kv: str
    states: str

    @property
    def name(self) -> str:
        return f"{self.model} drafts {self.drafts} {self.kv} {self.states}"

    def layout(self) -> CacheLayout:
        config = replace(published_or_folder(self.model), draft_layers=self.drafts)
        return config.cache_layout(self.kv, "bfloat16", self.states)


def shapes() -> list[Shape]:
    """Return the 32 shapes with bf16 keys and values, then 8 with FP8 rows."""
    plain = [
        Shape(model, drafts, "bfloat16", states)
        for model in PUBLISHED
        for drafts in (0, 1)
        for states in ("float32", "bfloat16")
    ]
    return plain + [Shape(model, 1, FP8_ROWS, "float32") for model in PUBLISHED]


def numbers(layout: CacheLayout) -> dict[str, Any]:
    """Return every number of a layout: sizes, regions, columns, spans and its arena's units."""
    regions = [[r.layer, r.index, r.length] for r in layout.regions]
    columns = [[c.layer, c.name, c.offset, [*c.shape], c.dtype, c.length] for c in layout.columns]
    spans = [layout.page_span(r.layer, 3) for r in layout.regions]
    spans += [layout.state_span(layer, 2) for layer in sorted({c.layer for c in layout.columns})]
    strips = TransferUnits.of(layout).strips(SLABS * layout.slab_bytes)
    return {
        **{name: getattr(layout, name) for name in (*_SIZES, *_COUNTS)},
        "regions": regions,
        "columns": columns,
        "spans": [[span.offset, span.length] for span in spans],
        "strips": [[s.offset, s.length, s.stride, s.count] for s in strips],
    }


def rows(layout: CacheLayout, precision: WirePrecision) -> ChunkRows:
    """Return the digest's rows of a chunk of all layers, with two pages and a state."""
    units = WireUnits.of(layout, precision)
    chunk = ArenaChunk(7, 3, _header(layout), (2, 5), 2)
    return chunk_rows(chunk_geometry(layout, units), chunk)


def precisions(shape: Shape) -> Iterator[WirePrecision]:
    """Yield each precision on the wire that saves bytes for this shape."""
    for kv in (Precision.EXACT, Precision.FP8):
        for state in (Precision.EXACT, Precision.FP8, Precision.BF16):
            if (kv is Precision.EXACT or shape.kv != FP8_ROWS) and (
                state is not Precision.BF16 or shape.states == "float32"
            ):
                yield WirePrecision(kv, state)


def link_pairs(layout: CacheLayout) -> Iterator[tuple[str, RankSpans, RankSpans]]:
    """Yield the numbers of sender and receiver ranks, with both nodes' memory: 43 links in all."""
    for senders, receivers in (*product(RANKS, RANKS), (1, 8), (8, 1)):
        ours, theirs = (RankSpans(layout, ranks, SLABS) for ranks in (senders, receivers))
        yield f"{senders}:{receivers}", ours, theirs


def pieces(ours: RankSpans, theirs: RankSpans) -> list[list[int]]:
    """Return the segments of a chunk of all layers between all ranks, with pages for each turn."""
    chunk = (2, 5, 3, 4), (4, 2, 5, 3), (2, 1)
    return RankedSegments(ours, theirs).of_chunk(_header(ours.layout, 4), *chunk).tolist()  # type: ignore[no-any-return]


def head_rows(ours: RankSpans, receivers: int) -> ChunkRows:
    """Return the digest's rows of the same chunk on the sender's ranks."""
    chunk = ArenaChunk(7, 3, _header(ours.layout, 4), (2, 5, 3, 4), 2)
    return HeadRows(ours, receivers).of_chunk(chunk)


def _header(layout: CacheLayout, pages: int = 2) -> ChunkHeader:
    layers = len(layout.regions) + len({c.layer for c in layout.columns}) - layout.draft_layers
    return ChunkHeader(0, 0, layers, 6, pages, True)


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _of_rows(found: ChunkRows) -> str:
    """Return a digest of the rows in any order, because a chunk's digest is their sum."""
    lines = np.stack([found.offsets, found.lengths, found.seeds]).astype("<i8")
    return hashlib.sha256(lines[:, np.lexsort(lines)].tobytes()).hexdigest()[:16]


def of_shape(shape: Shape) -> dict[str, Any]:
    """Return the shape's entry in the table."""
    layout = shape.layout()
    whole: Callable[[object], object] = (lambda v: v) if shape.model == _WHOLE else digest
    entry: dict[str, Any] = {
        "contract": whole(dict(sorted(Contract("w", layout).flat().items()))),
        "ranks": {
            str(ranks): {
                **{name: getattr(part, name) for name in (*_SIZES, *_COUNTS)},
                "all": digest(numbers(part)),
            }
            for ranks in RANKS
            if (part := rank_layout(layout, ranks, ranks - 1))
        },
        "wire": {
            f"{p.kv.value} {p.state.value}": [
                _of_rows(rows(layout, p)),
                chunk_bytes(WireUnits.of(layout, p), _header(layout)),
            ]
            for p in precisions(shape)
        },
        "pairs": {
            pair: [digest(pieces(ours, theirs)), _of_rows(head_rows(ours, theirs.ranks))]
            for pair, ours, theirs in link_pairs(layout)
        },
    }
    if shape.model == _WHOLE and shape.states == "float32":
        entry["numbers"] = numbers(layout)
        ours, theirs = RankSpans(layout, 2, SLABS), RankSpans(layout, 4, SLABS)
        entry["2:4"] = pieces(ours, theirs)
    return entry


def table() -> dict[str, Any]:
    return {shape.name: of_shape(shape) for shape in shapes()}


if __name__ == "__main__":
    lines = (f'"{k}":{json.dumps(v, separators=(",", ":"))}' for k, v in table().items())
    print("{" + ",\n".join(lines) + "}")
