"""Arena of this node written by peers, and the decoding of encoded layer chunks in it.

Owns no memory: the engine does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tasuki.pycache.layout import ONLY_ARENA, ArenaKey, CacheLayout
from tasuki.transfer.chunks.chunk import ChunkHeader
from tasuki.transfer.chunks.digest import ArenaChunk, Digester, Digestible
from tasuki.transfer.precision.layer_codec import LayerCodec
from tasuki.transfer.precision.wire_layout import WireUnits
from tasuki.transfer.ranks.head_rows import BY_HEADS, HeadRows
from tasuki.transfer.ranks.region import RankSpans
from tasuki.transfer.transports.base import Transport


@dataclass(frozen=True)
class EncodedPart:
    """Encoded part of a layer chunk, in one layer. ids: page ids, or in a layer without
    pages the slot."""

    layer: int
    ids: tuple[int, ...]


class ChunkSink:
    """Decoder of encoded layer chunks. They arrive at the beginnings of their blocks and states,
    and are decoded in place.

    Knows units, but no transfers and no threads: the receiver calls it. Invariant: a part is small
    enough for a thread to wait until its end.
    """

    def __init__(self, units: WireUnits, code: int, codec: LayerCodec) -> None:
        """units: lengths of units on the wire. code: number of the precision; every notification
        must have it. codec: decoder of a layer's units."""
        self.code = code
        self._units = units
        self._codec = codec

    def parts(
        self, header: ChunkHeader, pages: Sequence[int], slot: int | None
    ) -> Iterator[EncodedPart]:
        """Yield the encoded parts of the chunk, each once. pages, slot: ids of this arena."""
        for layer in range(header.first_layer, header.end_layer):
            if self._units.form(layer) is None:
                continue
            blocks = self._units.layers[layer].page
            ids = tuple(pages) if blocks else () if slot is None else (slot,)
            at_once = self._codec.batch(layer)
            for start in range(0, len(ids), at_once):
                yield EncodedPart(layer, ids[start : start + at_once])

    def decode(self, part: EncodedPart) -> None:
        """Decode the part's units in place to their whole sizes; return when that is done."""
        self._codec.decode(part.layer, part.ids)


@dataclass(frozen=True)
class TargetArena:
    """Arena of this node written by peers, with the means to read and decode arrived bytes.

    chunk_sink: decoder; None if chunks are sent exact. spans: places of the arenas of the node's
    ranks, of `slabs` slabs each; None: there is one arena, and senders of several ranks are not
    accepted. REQUIRES: transport has registered at least this memory, and digester reads it.
    """

    slabs: int
    transport: Transport
    digester: Digester
    chunk_sink: ChunkSink | None = None
    key: ArenaKey = ONLY_ARENA
    spans: RankSpans | None = None

    @property
    def codes(self) -> tuple[int, ...]:
        """Return the precision codes accepted in notifications."""
        if self.chunk_sink is not None:
            return (self.chunk_sink.code,)
        by_heads = () if self.spans is None else (BY_HEADS,)
        return by_heads if self.spans is not None and self.spans.ranks > 1 else (0, *by_heads)

    def part(self, layout: CacheLayout) -> CacheLayout:
        """Return the layout of each rank's arena. layout: of a single rank with all heads."""
        return layout if self.spans is None else self.spans.part

    def digestible(self, chunk: ArenaChunk, code: int) -> Digestible:
        """Return the chunk in the form to digest it: as ids, or as rows by heads if its code is
        BY_HEADS. REQUIRES: the code is one of `codes`."""
        return self._by_heads.of_chunk(chunk) if code == BY_HEADS else chunk

    @cached_property
    def _by_heads(self) -> HeadRows:
        assert self.spans is not None
        return HeadRows(self.spans, self.spans.ranks)
