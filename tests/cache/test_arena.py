"""The layout's two lists, block regions and slot columns, and the arena's views. The bytes of each
page and state are at the places given by the layout."""

import ctypes
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tasuki.engine.config import EngineConfig
from tasuki.engine.messages import Choice
from tasuki.engine.routing import Router
from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import ArenaKey, CacheLayout, Place, Span
from tasuki.pycache.parts import itemsize
from tasuki.transfer.protocol.contract import Contract
from tests.harness.loopback_pair import DRAFT, FULL, GDN, small_layout
from tests.harness.model_shapes import MOE

SLABS = 3
ALIGNED = 64
LAYOUTS = [
    small_layout(),
    small_layout((FULL, GDN, FULL, FULL)),
    small_layout((FULL, GDN, GDN, FULL, DRAFT)),
    MOE.cache_layout("bfloat16", "bfloat16", "float32"),
]
each_layout = pytest.mark.parametrize(
    "layout", LAYOUTS, ids=["two kinds", "kinds unequal", "drafts", "a model's"]
)


@each_layout
def test_every_layers_view_shows_the_bytes_that_its_layout_names_and_ends_in_the_arena(
    layout: CacheLayout,
) -> None:
    arena = Arena(layout, SLABS)
    for region, view in zip(layout.regions, arena.views("kv"), strict=True):
        (part,) = region.parts
        assert view.shape[1:] == part.shape
        pages = [page for page in range(len(view)) if layout.valid_page(page, SLABS)]
        assert len(pages) == SLABS * layout.pages_per_slab
        for page in pages:
            shown(arena, view[page], *span(layout.page_span(region.layer, page)))
    for column in layout.columns:
        view = arena.view(column.layer, column.name)
        assert view.shape == (SLABS, *column.shape)
        for slot in range(SLABS):
            offset, length = span(layout.state_span(column.layer, slot))
            begin = slot * layout.slab_bytes + column.offset
            assert offset <= begin and begin + column.length <= offset + length
            shown(arena, view[slot], begin, column.length)
    assert {column.name for column in layout.columns} <= {"conv", "ssm", "carry"}


def span(named: object) -> tuple[int, int]:
    return named.offset, named.length  # type: ignore[attr-defined]


def shown(arena: Arena, view: torch.Tensor, offset: int, length: int) -> None:
    arena.bytes.zero_()
    view.fill_(1.0)
    touched = arena.bytes.nonzero()[:, 0]
    assert touched.min() >= offset and touched.max() < offset + length
    assert length - ALIGNED < view.numel() * view.element_size() <= length


@pytest.mark.parametrize(("held", "tokens", "pages"), [(0, 1, 1), (64, 200, 3), (100, 128, 1)])
def test_what_a_side_lacks_is_weighed_in_bytes_of_every_layer(
    held: int, tokens: int, pages: int
) -> None:
    layout = small_layout((FULL, GDN, FULL, GDN, GDN))
    router = Router(EngineConfig(model=""), layout, layout)
    states = layout.slot_bytes
    assert router.state_bytes(held, tokens) == pages * 2 * layout.block_bytes + states


def test_a_pull_takes_by_its_tokens_what_was_measured_by_its_bytes() -> None:
    layout = small_layout((FULL, GDN, FULL, GDN, GDN))
    router = Router(EngineConfig(model=""), layout, layout)
    assert router.pull_seconds() is None
    for size in range(1, 40):
        router.costs.pulled.add(1000.0 * size, 0.5 + 1e-6 * 1000.0 * size)
    line = router.pull_seconds()
    assert line is not None
    assert line.each == pytest.approx(1e-6 * 2 * layout.block_bytes / 64)
    assert line.fixed == pytest.approx(0.5 + 1e-6 * layout.slot_bytes)


def test_a_pull_is_of_what_is_lacking_and_long_enough() -> None:
    layout = small_layout()
    router = Router(EngineConfig(model="", pull_tokens=100), layout, layout)
    match: Any = SimpleNamespace(kv_tokens=500, usable_tokens=500)
    for offered, choice in ((599, Choice.THERE), (600, Choice.PULLED)):
        assert router.pull(match, offered, ahead=0.0).choice is choice


@each_layout
def test_regions_are_the_blocks_of_a_page_and_columns_fill_a_slot(layout: CacheLayout) -> None:
    caches = layout.layers
    assert [region.layer for region in layout.regions] == [
        layer for layer, cache in enumerate(caches) if cache.page
    ]
    assert [region.index for region in layout.regions] == list(range(len(layout.regions)))
    for page in (0, layout.blocks_per_slab + layout.pages_per_slab - 1):
        spans = [layout.page_span(region.layer, page) for region in layout.regions]
        assert {span.length for span in spans} == {layout.block_bytes}
        steps = {after.offset - one.offset for one, after in pairwise(spans)}
        assert steps <= {layout.region_stride}
        assert spans[0].offset == page * layout.block_bytes
    ends = [0, *(column.end for column in layout.columns)]
    assert [column.offset for column in layout.columns] == ends[:-1]
    assert ends[-1] == layout.slot_bytes <= layout.slab_bytes
    for slot in (0, 7):
        offset = slot * layout.slab_bytes
        for layer, cache in enumerate(caches):
            if cache.slot:
                span = layout.state_span(layer, slot)
                length = sum(-(-part.length // ALIGNED) * ALIGNED for part in cache.slot)
                assert (span.offset, span.length) == (offset, length)
                offset += span.length
        assert offset == slot * layout.slab_bytes + layout.slot_bytes


def test_a_draft_layer_takes_a_block_a_page_and_a_column_of_the_last_token() -> None:
    without = small_layout((GDN, FULL) * 4)
    layout = small_layout((GDN, FULL) * 4 + (DRAFT,))
    assert (layout.draft_layers, len(without.regions), len(layout.regions)) == (1, 4, 5)
    assert layout.page_bytes == without.page_bytes + layout.block_bytes
    # 20 numbers of 4 bytes, padded to a multiple of 64.
    assert layout.state_length(8) == 128 == layout.slot_bytes - without.slot_bytes
    assert without.draft_layers == without.state_length(7) == 0
    assert not Arena(without, 1).views("carry")
    (carry,) = Arena(layout, SLABS).views("carry")
    assert carry.shape == (SLABS, 20)


def test_a_contract_names_the_shapes_and_not_the_lists() -> None:
    assert Contract("w", small_layout((GDN, FULL))).flat() == {
        "weights_digest": "w",
        "tensor_parallel": "1",
        "wire_version": "12",
        "page_tokens": "64",
        "block_order": "head, key or value, token",
        "draft_index": "embedded token",
        "draft_layers": "0",
        "carry_width": "0",
        "carry_dtype": "float32",
        "wire_kv": "exact",
        "wire_state": "exact",
        "nixl": "(not used)",
        "ucx": "(not used)",
        "constants": "(not used)",
        "weights_format": "(not used)",
        "layer_kinds": "linear_attention,full_attention",
        "kv_heads": "1",
        "head_dim": "8",
        "kv_dtype": "float32",
        "conv_channels": "24",
        "conv_columns": "3",
        "conv_dtype": "float32",
        "value_heads": "2",
        "value_dim": "16",
        "key_dim": "16",
        "ssm_dtype": "float32",
    }


def test_an_arena_is_named_by_its_place_and_rank() -> None:
    assert Arena(small_layout(), 1).key == ArenaKey(Place.DEVICE, 0, 1)
    second = ArenaKey(Place.HOST, 1, 2)
    assert Arena(small_layout(), 1, key=second).key == second != ArenaKey(Place.HOST, 0, 2)
    for rank, ranks in ((1, 1), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match="is not one of"):
            ArenaKey(rank=rank, ranks=ranks)


def test_bytes_are_what_the_shapes_come_to_by_hand() -> None:
    """GDN, GDN, GDN, FULL twice; float32 everywhere."""
    layout = small_layout()
    assert layout.regions[0].cache.page[0].shape == (1, 2, 64, 8)
    assert layout.block_bytes == 2 * 64 * 1 * 8 * 4 == 4096
    # The conv state's 24 * 3 * 4 bytes are padded to a multiple of 64.
    assert layout.columns[0].length == 320
    assert layout.state_length(0) == 320 + 2 * 16 * 16 * 4 == 2368
    assert layout.slot_bytes == 6 * 2368
    # The blocks of a slot: 14208 / 4096. Two blocks are a page.
    assert (layout.blocks_per_slab, layout.pages_per_slab) == (4, 2)
    assert (layout.slab_bytes, layout.page_bytes) == (4 * 4096, 2 * 4096)
    assert layout.region_stride == 2 * 4096
    assert (len(layout.regions), len(layout.states)) == (2, 6)
    assert [layout.state_length(layer) > 0 for layer in range(8)] == [True] * 3 + [False] + (
        [True] * 3 + [False]
    )
    assert layout.page_span(7, 5) == Span(2 * 4096 + 5 * 4096, 4096)
    assert layout.state_span(1, 3) == Span(2368 + 3 * 4 * 4096, 2368)
    assert [itemsize(name) for name in ("float32", "bfloat16", "float16")] == [4, 2, 2]
    pages = [page for page in range(-9, 99) if layout.valid_page(page, slabs=3)]
    assert pages == [0, 1, 4, 5, 8, 9]
    # Without states a slab is a page.
    bare = small_layout((FULL, FULL, FULL))
    assert (bare.blocks_per_slab, bare.pages_per_slab, bare.slot_bytes) == (3, 1, 0)
    assert (bare.states, bare.state_length(0)) == ((), 0)


def test_what_stands_at_its_address_is_the_arenas_memory() -> None:
    arena = Arena(small_layout(), SLABS)
    arena.bytes.copy_(torch.arange(len(arena.bytes)) % 251)
    assert ctypes.string_at(arena.address, arena.size) == arena.bytes.numpy().tobytes()
