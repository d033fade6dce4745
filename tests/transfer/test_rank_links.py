"""Links between nodes of any sizes carry each byte of each receiver once, to its place."""

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from numpy.typing import NDArray

from tasuki.model.families.qwen3_5.cuts import Qwen35Cuts
from tasuki.model.families.qwen3_5.published import PUBLISHED
from tasuki.model.layer_kind import LayerKind
from tasuki.model.weights.shard import Shard
from tasuki.pycache.layout import CacheLayout, rank_layout
from tasuki.pycache.parts import Heads, Segments, itemsize, share
from tasuki.transfer.ranks.links import RankLink, Segment, rank_links
from tests.harness.qwen35 import published_or_folder

SIZES = (1, 2, 4, 8)
PAGES = range(8)
"""The number of pages is at least the number of copies, so each link has its turn."""


def published(name: str) -> CacheLayout:
    """Return the layout of a shape with one layer of each kind; byte counts are those of the whole
    model."""
    config = published_or_folder(name)
    config = replace(config, layer_kinds=config.layer_kinds[2:4], draft_layers=1)
    assert config.layer_kinds == (LayerKind.GDN, LayerKind.FULL)
    return config.cache_layout("bfloat16", "bfloat16", "float32")


def heads_of(layout: CacheLayout, name: str) -> list[tuple[str, int, int]]:
    """Return (name, heads, bytes of a head) for each part of a column or a block, end to end. A
    part without heads has none."""
    caches = layout.layers
    parts = {part.name: part for cache in caches for part in (*cache.page, *cache.slot)}
    part = parts["kv" if name == "block" else name]
    line = prod(part.shape[1:]) * itemsize(part.dtype)
    match part.cut:
        case Heads(count):
            return [(name, count, line)]
        case Segments(heads):
            return [(name, count, rows * line) for count, rows in heads]
    return []


Bytes = NDArray[np.int32]


def memory(layout: CacheLayout, ranks: int, rank: int, name: str) -> Bytes:
    """Return the expected memory of a rank: each head's place has its number in the whole model, by
    the rule of shares alone. It has a 256th of the bytes, because every size is a multiple of
    256."""
    parts, number = [], 1
    for _, heads, size in heads_of(layout, name):
        own = share(heads, ranks, rank)
        parts.append(np.repeat(np.arange(number + own.start, number + own.stop), size // 256))
        number += heads
    if name == "carry":
        parts.append(np.full(layout.state_length(2) // 256, 77))
    return np.concatenate(parts).astype(np.int32)


def copied(source: Bytes, target: Bytes, times: Bytes, segment: Segment) -> None:
    at, to, count = (number // 256 for number in (segment.source, segment.target, segment.length))
    assert count > 0 and at + count <= len(source) and to + count <= len(target)
    assert all(number % 256 == 0 for number in (segment.source, segment.target, segment.length))
    target[to : to + count] = source[at : at + count]
    times[to : to + count] += 1


def received(
    layout: CacheLayout, senders: int, receivers: int, links: list[RankLink], name: str, page: int
) -> Iterator[tuple[Bytes, Bytes]]:
    """Yield for each receiver rank its memory and the number of writes to each of its bytes."""
    layer = {"conv": 0, "ssm": 0, "carry": 2, "block": 1}[name]
    for target in range(receivers):
        want = memory(layout, receivers, target, name)
        got, times = np.zeros_like(want), np.zeros_like(want)
        for link in (link for link in links if link.target == target):
            source = memory(layout, senders, link.source, name)
            cache = layout.layers[layer]
            if name == "block":
                for segment in link.of_block(cache):
                    if page % segment.copies == segment.turn:
                        copied(source, got, times, segment)
                continue
            begin = {}
            for ranks, rank in ((senders, link.source), (receivers, target)):
                own = rank_layout(layout, ranks, rank)
                (column,) = [c for c in own.columns if (c.layer, c.name) == (layer, name)]
                first = own.state_span(layer, 0).offset
                begin[ranks, rank] = column.offset - first, column.end - first
            ours, theirs = begin[senders, link.source], begin[receivers, target]
            for segment in link.of_state(cache):
                if ours[0] <= segment.source < ours[1]:
                    assert theirs[0] <= segment.target < theirs[1]
                    at, to = segment.source - ours[0], segment.target - theirs[0]
                    copied(source, got, times, replace(segment, source=at, target=to))
        yield got, times


@pytest.mark.parametrize("name", PUBLISHED)
def test_links_cover_each_byte_of_each_receiver_once(name: str) -> None:
    layout = published(name)
    for senders in SIZES:
        for receivers in SIZES:
            links = rank_links(layout, senders, receivers)
            for what in ("conv", "ssm", "carry", "block"):
                for page in PAGES if what == "block" else (0,):
                    found = received(layout, senders, receivers, links, what, page)
                    for rank, (got, times) in enumerate(found):
                        assert (times == 1).all(), (senders, receivers, what, rank)
                        assert (got == memory(layout, receivers, rank, what)).all()


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("ranks", SIZES)
def test_a_ranks_layout_is_that_of_its_weights(name: str, ranks: int) -> None:
    config = published_or_folder(name)
    whole = config.cache_layout("bfloat16", "bfloat16", "float32")
    for rank in range(ranks):
        part = (
            Qwen35Cuts(config)
            .part(Shard(rank, ranks))
            .cache_layout("bfloat16", "bfloat16", "float32")
        )
        assert rank_layout(whole, ranks, rank) == part
        # An id then means the same on all ranks.
        assert part == rank_layout(whole, ranks, 0)


def test_ranks_that_share_nothing_have_no_link_and_every_rank_has_one() -> None:
    layout = published("9b")
    assert [(link.source, link.target) for link in rank_links(layout, 2, 4)] == [
        (0, 0), (0, 1), (1, 2), (1, 3),
    ]  # fmt: skip
    for senders in SIZES:
        for receivers in SIZES:
            links = rank_links(layout, senders, receivers)
            assert {link.source for link in links} == {*range(senders)}
            assert {link.target for link in links} == {*range(receivers)}
            assert len(links) == max(senders, receivers)


def test_senders_with_copies_of_a_head_take_turns() -> None:
    layout = published("35b-a3b")
    links = [link for link in rank_links(layout, 8, 2) if link.target == 1]
    assert [link.source for link in links] == [4, 5, 6, 7]
    for page in range(16):
        (sender,) = [
            link.source
            for link in links
            for segment in link.of_block(layout.layers[1])
            if page % segment.copies == segment.turn
        ]
        assert sender == 4 + page % 4


@pytest.mark.parametrize("wrong", ["swapped", "shifted", "missing"])
def test_wrong_links_are_noticed(wrong: str) -> None:
    """The control: the check above fails for wrong links."""
    layout = published("9b")
    links = rank_links(layout, 4, 2)
    if wrong == "swapped":
        links[0] = replace(links[0], target=links[-1].target)
    elif wrong == "shifted":
        links = [replace(link, source=(link.source + 1) % 4) for link in links]
    else:
        del links[2]
    with pytest.raises(AssertionError):
        for what in ("conv", "ssm", "carry", "block"):
            found = received(layout, 4, 2, links, what, 0)
            for rank, (got, times) in enumerate(found):
                assert (times == 1).all() and (got == memory(layout, 2, rank, what)).all()
