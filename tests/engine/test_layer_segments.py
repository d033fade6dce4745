"""A load in segments: every byte once, in the order of layers, and each layer opens when
complete."""

from collections import Counter

import pytest

from tasuki.engine.tiers.copy_job import CopyJob, Direction, layer_segments
from tasuki.model.layer_kind import LayerKind
from tasuki.pycache.layout import CacheLayout
from tests.harness.loopback_pair import FULL, GDN, small_layout

KINDS = (GDN, FULL, FULL, GDN)
LARGE = {"hidden": 8, "value_heads": 3, "value_dim": 64, "key_dim": 64}
LAYOUT, DRAFTED = small_layout(KINDS, **LARGE), small_layout((*KINDS, LayerKind.DRAFT), **LARGE)
NEXT = LAYOUT.blocks_per_slab
PAGES = ((0, 2 * NEXT), (1, 2 * NEXT + 1), (NEXT, 5 * NEXT), (NEXT + 1, 3 * NEXT))


def job(pages: tuple[tuple[int, int], ...], slot: tuple[int, int] | None) -> CopyJob:
    return CopyJob(1, Direction.UP, pages, slot)


@pytest.mark.parametrize("most", [1, 2 * LAYOUT.block_bytes, 1 << 30])
@pytest.mark.parametrize("layout", [LAYOUT, DRAFTED])
@pytest.mark.parametrize("pages", [PAGES, ()])
@pytest.mark.parametrize("slot", [(3, 6), None])
def test_every_byte_is_moved_once_to_where_its_layer_has_it(
    layout: CacheLayout,
    most: int,
    pages: tuple[tuple[int, int], ...],
    slot: tuple[int, int] | None,
) -> None:
    if not pages and slot is None:
        return
    assert all(layout.valid_page(page, 9) for pair in pages for page in pair)
    found = list(layer_segments(layout, job(pages, slot), most))
    moved: Counter[tuple[int, int]] = Counter()
    seen = 0
    for segment in found:
        assert segment.layers >= seen
        for source, target, length in segment.moves.T.tolist():
            for byte in range(0, length, 4):
                moved[source + byte, target + byte] += 1
        # Layers opened from here on are complete.
        for layer in range(seen, segment.layers):
            assert all(moved[pair] == 1 for pair in _pairs(layout, layer, pages, slot)), layer
        seen = segment.layers
    assert seen == len(layout.layers)
    wanted = {pair for layer in range(seen) for pair in _pairs(layout, layer, pages, slot)}
    assert set(moved) == wanted


def _pairs(
    layout: CacheLayout,
    layer: int,
    pages: tuple[tuple[int, int], ...],
    slot: tuple[int, int] | None,
) -> list[tuple[int, int]]:
    spans = []
    if layout.layers[layer].page:
        spans += [[layout.page_span(layer, page) for page in pair] for pair in pages]
    if layout.layers[layer].slot and slot is not None:
        spans.append([layout.state_span(layer, number) for number in slot])
    return [
        (one.offset + byte, other.offset + byte)
        for one, other in spans
        for byte in range(0, one.length, 4)
    ]


def test_neighbours_of_a_slab_go_together() -> None:
    (part,) = [
        segment
        for segment in layer_segments(LAYOUT, job(PAGES[:2], None), 1 << 30)
        if segment.region == 0
    ]
    assert part.moves[2].tolist() == [2 * LAYOUT.block_bytes]
