"""Arenas of a region at unrelated addresses: the same bytes are sent, arrive and are digested as in
contiguous ones."""

import numpy as np
import pytest

from tasuki.pycache.layout import CacheLayout
from tasuki.transfer.chunks.chunk import ChunkHeader
from tasuki.transfer.chunks.descriptors import Spread
from tasuki.transfer.chunks.digest import ArenaChunk, ChunkDigester
from tasuki.transfer.errors import OutOfBounds
from tasuki.transfer.ranks.head_rows import HeadRows
from tasuki.transfer.ranks.ranked_source import RankedSegments
from tasuki.transfer.ranks.region import RankSpans, SpreadDigester
from tests.transfer.test_ranked_hand_over import LAYOUT

SLABS = 6


class Scattered:
    """A node's arenas in one allocation, in no order of the ranks, with gaps."""

    def __init__(self, layout: CacheLayout, ranks: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.spans = RankSpans(layout, ranks, SLABS)
        size, gap = self.spans.arena_bytes, 4096
        places = random.permutation(ranks) * (size + gap) + gap
        self.memory = random.integers(0, 256, ranks * (size + gap) + gap, dtype=np.uint8)
        stride = self.spans.base(1) if ranks > 1 else size
        self.spread = Spread(tuple(places.tolist()), size, stride)

    def region(self) -> np.ndarray:
        """Return the same bytes, one arena after another."""
        found = np.zeros(self.spans.region_bytes, dtype=np.uint8)
        for rank, place in enumerate(self.spread.addresses):
            base, size = self.spans.base(rank), self.spans.arena_bytes
            found[base : base + size] = self.memory[place : place + size]
        return found


@pytest.mark.parametrize(("senders", "receivers"), [(2, 1), (1, 2), (2, 2), (4, 2)])
def test_pieces_and_digests_are_those_of_arenas_side_by_side(senders: int, receivers: int) -> None:
    source, target = Scattered(LAYOUT, senders, 1), Scattered(LAYOUT, receivers, 2)
    segments = RankedSegments(source.spans, target.spans)
    layers = len(LAYOUT.layers)
    header = ChunkHeader(0, 0, layers, 0, 3, carries_state=True)
    # Pages in slabs other than both slots.
    ids = [
        [slab * node.spans.part.blocks_per_slab for slab in slabs]
        for node, slabs in ((source, (4, 0, 3)), (target, (3, 4, 0)))
    ]
    (here, there), slots = map(tuple, ids), (5, 2)
    found = segments.of_chunk(header, here, there, slots)
    expected, moved = target.region(), source.region()
    for local, remote, length in found.tolist():
        expected[remote : remote + length] = moved[local : local + length]
    lengths = found[:, 2]
    local = source.spread.placed(found[:, 0], lengths) + source.spread.begin
    remote = target.spread.placed(found[:, 1], lengths) + target.spread.begin
    assert (local >= 0).all() and (local + lengths <= len(source.memory)).all()
    for begin, end, length in zip(local.tolist(), remote.tolist(), lengths.tolist(), strict=True):
        target.memory[end : end + length] = source.memory[begin : begin + length]
    assert np.array_equal(target.region(), expected)
    digests = []
    for node, of, pages, slot in (
        (source, receivers, here, slots[0]),
        (target, receivers, there, slots[1]),
    ):
        rows = HeadRows(node.spans, of).of_chunk(ArenaChunk(3, 4, header, pages, slot))
        digests.append(ChunkDigester(node.region(), LAYOUT).digest_rows(rows))
        for origin in (0, node.spread.begin):
            of_all = ChunkDigester(node.memory[origin:], LAYOUT)
            assert SpreadDigester(of_all, origin, node.spread).digest_rows(rows) == digests[-1]
    assert digests[0] == digests[1]


def test_what_no_arena_has_whole_is_nowhere() -> None:
    spread = Spread((9000, 1000, 5000), 96, 128)
    assert (spread.region_bytes, spread.begin, spread.extent) == (352, 1000, 8096)
    offsets, lengths = np.array([0, 128, 340, 80]), np.array([96, 16, 12, 16])
    assert spread.placed(offsets, lengths).tolist() == [8000, 0, 4084, 8080]
    most = np.iinfo(np.int64).max
    for offset, length in (
        (-16, 16),
        (81, 16),
        (96, 16),
        (384, 16),
        (0, 0),
        (128, most),
        (most, 1),
    ):
        with pytest.raises(OutOfBounds, match="in none of 3 arenas of 96, 128 apart"):
            spread.placed(np.array([0, offset]), np.array([16, length]))
