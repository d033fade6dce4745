"""Layouts of other families from their declared parts, in bytes counted by hand, and the views of
their parts. No code names a family's parts."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import PAGE_TOKENS, CacheLayout, Span, rank_layout
from tasuki.pycache.parts import FP8_ROWS, Heads, LayerCache, Part, Segments, Whole
from tasuki.transfer.chunks.digest import layer_parts
from tasuki.transfer.precision.wire_layout import WireError, WireUnits
from tasuki.transfer.protocol.contract import Contract
from tasuki.transfer.settings import Precision, WirePrecision

KIB, MIB = 1024, 2**20
ROOT = Path(__file__).resolve().parents[2]


def kv(heads: int, dim: int, dtype: str = "bfloat16") -> Part:
    return Part("kv", (heads, 2, PAGE_TOKENS, dim), dtype, Heads(heads))


def conv(*heads: tuple[int, int]) -> Part:
    rows = sum(count * size for count, size in heads)
    return Part("conv", (rows, 3), "bfloat16", Segments(heads))


def matrix(heads: int, dim: int = 128) -> Part:
    return Part("ssm", (heads, dim, dim), "float32", Heads(heads))


def whole(name: str, *shape: int, dtype: str = "bfloat16") -> Part:
    return Part(name, shape, dtype, Whole())


STATE = LayerCache("state", slot=(conv((16, 128), (16, 128), (48, 128)), matrix(48)))
TABLE = LayerCache("table", slot=(*STATE.slot, whole("ple_window", 4 * 2560, 9)))
WINDOW, INDEX = whole("index_window", 128, 3), whole("index", 16, 128)
SPARSE = LayerCache("sparse", page=(kv(2, 256), INDEX), slot=(WINDOW,))
DRAFT = LayerCache("draft", page=SPARSE.page, slot=(whole("carry", 4 * 2560), WINDOW))
SPARSE_LAYERS = (STATE, TABLE, STATE, SPARSE) + (STATE, STATE, STATE, SPARSE) * 11
LATENT = LayerCache("latent", page=(whole("latent", 64, 576),))
DELTA = LayerCache("delta", slot=(conv((32, 128), (32, 128), (32, 128)), matrix(32)))


def test_sparse_attention_with_a_table_costs_what_was_counted() -> None:
    layout = CacheLayout(SPARSE_LAYERS)
    assert layout.block_bytes == 128 * KIB + 16 * 128 * 2 == 135_168
    assert layout.page_bytes / PAGE_TOKENS == 24.75 * KIB
    states = 36 * (3 * MIB + 60 * KIB)
    assert layout.slot_bytes == states + 12 * 768 + 180 * KIB
    assert round(layout.slot_bytes / MIB, 1) == 110.3
    assert (layout.blocks_per_slab, layout.pages_per_slab) == (856, 71)
    drafting = CacheLayout((*SPARSE_LAYERS, DRAFT), draft_layers=1)
    assert (drafting.blocks_per_slab, drafting.pages_per_slab) == (856, 65)
    assert drafting.state_length(48) == 20 * KIB + 768
    half = rank_layout(drafting, 2, 1)
    assert half.block_bytes == 69_632 and half.pages_per_slab == 64
    assert round(half.slot_bytes / MIB, 1) == 55.3
    # States of layers are unequal: each has its own length.
    assert {span.length for span in layout.states} == {3 * MIB + 60 * KIB} | {
        *(3 * MIB + 240 * KIB, 768)
    }


def test_latents_without_heads_are_whole_on_every_rank() -> None:
    layout = CacheLayout(((DELTA,) * 3 + (LATENT,)) * 6 + (DELTA, DELTA, LATENT))
    assert (layout.block_bytes, len(layout.regions)) == (72 * KIB, 7)
    assert round(layout.slot_bytes / MIB, 1) == 41.4
    for ranks in (2, 4, 8):
        part = rank_layout(layout, ranks, ranks - 1)
        assert part.page_bytes == layout.page_bytes
        assert part.slot_bytes == layout.slot_bytes // ranks
    assert layout.block_rows(3) == (Span(0, 72 * KIB),)
    with pytest.raises(WireError, match="wire_kv fp8 saves nothing over bfloat16"):
        WireUnits.of(layout, WirePrecision(kv=Precision.FP8))


def test_layers_of_a_block_drafter_have_pages_of_another_shape() -> None:
    full = LayerCache("full", page=(kv(4, 256),))
    drafter = LayerCache("drafter", page=(kv(8, 64),))
    layout = CacheLayout((STATE, STATE, STATE, full) * 8 + (drafter,) * 5)
    assert len(layout.regions) == 13 and layout.block_bytes == 256 * KIB
    assert [region.length // KIB for region in layout.regions] == [256] * 8 + [128] * 5
    assert layout.page_span(36, 2) == Span(12 * layout.region_stride + 2 * 256 * KIB, 128 * KIB)


@pytest.mark.parametrize(("dtype", "heads"), [("bfloat16", 128 * KIB), (FP8_ROWS, 128 * 257 * 2)])
def test_routed_experts_by_token_are_the_tail_of_attention_blocks(dtype: str, heads: int) -> None:
    """FP8 rows change only the keys and values: the experts stay exact, on every rank."""
    experts = whole("experts", PAGE_TOKENS, 48, 8, dtype="int16")
    layout = CacheLayout((STATE, LayerCache("full", page=(kv(2, 256, dtype), experts))))
    tail = PAGE_TOKENS * 48 * 8 * 2
    assert layout.block_bytes == heads + tail
    assert layout.block_rows(1) == (
        *(Span(0, heads // 2), Span(heads // 2, heads // 2), Span(heads, tail)),
    )
    assert rank_layout(layout, 2, 1).block_bytes == heads // 2 + tail
    if dtype != FP8_ROWS:
        units = WireUnits.of(layout, WirePrecision(kv=Precision.FP8))
        sent = 128 * 257
        assert units.block_rows(1) == (Span(0, sent), Span(sent, sent), Span(heads, tail))


def test_a_head_is_one_run_of_bytes_over_all_its_parts() -> None:
    scales = Part("scales", (2, 64, 4), "float32", Heads(2))
    cache = LayerCache("full", page=(INDEX, kv(2, 24), scales))
    layout = CacheLayout((cache, cache))
    head, index = 2 * 64 * 24 * 2 + 64 * 4 * 4, 16 * 128 * 2
    assert layout.block_bytes == 2 * head + index
    arena = Arena(layout, 3)
    pages = (1, 2 * layout.blocks_per_slab)
    for layer in (0, 1):
        for page in pages:
            begin = layout.page_span(layer, page).offset
            for name, view, length in (
                ("kv", (0, head), head - 1024),
                ("scales", (head - 1024, 2 * head - 1024), 1024),
            ):
                for number, offset in enumerate(view):
                    _shown(arena, arena.view(layer, name)[page, number], begin + offset, length)
            _shown(arena, arena.view(layer, "index")[page], begin + 2 * head, index)
    words = [(begin, length) for begin, length, _ in layer_parts(layout, 0, layout)[0]]
    assert words == [(0, head // 8), (head // 8, head // 8), (2 * head // 8, index // 8)]
    assert all(b == a + n for (a, n), (b, _) in pairwise(words))


def _shown(arena: Arena, view: torch.Tensor, offset: int, length: int) -> None:
    if offset == arena.layout.page_span(0, 1).offset:
        assert view.data_ptr() == arena.address + offset
    arena.bytes.zero_()
    view.copy_(torch.full_like(view, 1.0) if view.is_floating_point() else torch.ones_like(view))
    touched = arena.bytes.nonzero()[:, 0]
    assert touched.min() >= offset and touched.max() < offset + length
    assert view.numel() * view.element_size() == length


def test_nodes_of_another_family_compare_the_text_of_all_parts() -> None:
    flat = Contract("w", CacheLayout((DELTA,) * 3 + (LATENT,) + (DELTA,))).flat()
    delta = (
        "delta( / conv [12288, 3] bfloat16 Segments(heads=((32, 128), (32, 128), (32, 128))), "
        "ssm [32, 128, 128] float32 Heads(count=32))"
    )
    latent = "latent(latent [64, 576] bfloat16 Whole() / )"
    assert flat["layers"] == f"3 x {delta}, 1 x {latent}, 1 x {delta}"
    assert flat["draft_layers"] == "0" and flat["wire_version"] == "12"


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Part("kv", (3, 64), "bfloat16", Heads(2)), r"part kv: \[3, 64\] is not cut"),
        (lambda: Part("conv", (9, 3), "bfloat16", Segments(((2, 4),))), "part conv"),
        (lambda: Part("conv", (8, 3), FP8_ROWS, Segments(((2, 4),))), "part conv"),
        (lambda: LayerCache("full", (kv(2, 8), kv(4, 8))), "full: .* unequal numbers of heads"),
        (lambda: LayerCache("full", (conv((2, 8)),)), "a row for each head"),
        (lambda: LayerCache("full", (whole("odd", 5, 3),)), "no multiple of 16 bytes"),
        (lambda: CacheLayout((STATE,)), "a layer with pages"),
        (lambda: rank_layout(CacheLayout((STATE, SPARSE)), 3, 0), "cannot be shared out evenly"),
    ],
)
def test_what_is_no_layout_is_refused(make: object, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("ranks", [1, 2])
def test_bytes_by_name_add_up_to_a_page_and_a_slot(ranks: int) -> None:
    layout = rank_layout(CacheLayout(SPARSE_LAYERS), ranks, 0)
    sizes = layout.part_bytes
    pages = sum(size for name, size in sizes.items() if name.startswith("page."))
    assert pages == sum(region.length for region in layout.regions)
    assert sum(sizes.values()) - pages <= layout.slot_bytes
    assert sizes["page.index"] == layout.layers[3].page[1].length * len(layout.regions)


def test_no_file_of_the_cache_or_of_hand_overs_names_a_familys_parts() -> None:
    words = re.compile(r"(?<!-)\b(LayerKind|GDN|gdn|conv|convolution\w*|ssm|kv_heads|key_heads)\b")
    found = {
        (path.relative_to(ROOT).as_posix(), match.group())
        for folder in ("pycache", "transfer")
        for path in (ROOT / folder).rglob("*.py")
        for match in words.finditer(path.read_text())
    }
    assert not found
