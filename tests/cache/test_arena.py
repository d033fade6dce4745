"""Views of the arena: each page's and state's bytes are those that the layout names."""

import pytest
import torch
from tasuki.engine.config import EngineConfig
from tasuki.engine.routing.router import Router
from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import LayerKind

from tests.harness.loopback_pair import FULL, GDN, small_layout

SLABS = 3
ALIGNED = 64


def test_every_layers_view_shows_the_bytes_that_its_layout_names_and_ends_in_the_arena() -> None:
    layout = small_layout()
    arena = Arena(layout, SLABS)
    full = [layer for layer, kind in enumerate(layout.layer_kinds) if kind is FULL]
    assert len(full) > 1, "a lone layer's offset is zero"
    for layer, view in zip(full, arena.kv, strict=True):
        pages = [page for page in range(len(view)) if layout.valid_page(page, SLABS)]
        assert len(pages) == SLABS * layout.pages_per_slab
        for page in pages:
            shown(arena, view[page], *span(layout.page_span(layer, page)))
    gdn = [layer for layer, kind in enumerate(layout.layer_kinds) if kind is GDN]
    for index, layer in enumerate(gdn):
        for slot in range(SLABS):
            offset, length = span(layout.state_span(layer, slot))
            # Conv state stands first, padded to where the other may begin.
            middle = offset + layout.conv_bytes
            shown(arena, arena.conv[index][slot], offset, layout.conv_bytes)
            shown(arena, arena.ssm[index][slot], middle, offset + length - middle)


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
    layout = small_layout((LayerKind.FULL, LayerKind.GDN, LayerKind.FULL, LayerKind.GDN, GDN))
    router = Router(EngineConfig(model=""), layout, layout)
    states = 3 * layout.state_layer_bytes
    assert router._state_bytes(held, tokens) == pages * 2 * layout.block_bytes + states
