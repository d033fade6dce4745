"""Slots and pages are copied whole, to their destinations and nowhere else, each in one launch."""

from collections.abc import Callable

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tasuki.pycache.arena import Arena, copy_page, copy_slot, zero_slot
from tests.harness.loopback_pair import FULL, GDN, small_layout

# Unequal sizes everywhere; three pages a slab and some waste.
LAYOUT = small_layout(
    (GDN, GDN, FULL, GDN, FULL),
    channels=72,
    head_dim=16,
    kv_dtype="bfloat16",
    conv_dtype="bfloat16",
    value_dim=32,
    key_dim=32,
)


@pytest.fixture
def arena(device: torch.device) -> Arena:
    """Return an arena of random bytes."""
    arena = Arena(LAYOUT, 8, device)
    arena.bytes.random_(0, 256)
    return arena


def as_bytes(state: torch.Tensor) -> torch.Tensor:
    """Return the state as bytes, because random numbers may be NaN and equal nothing."""
    return state.contiguous().view(torch.uint8)


def test_a_copied_page_is_the_views_of_its_layers(arena: Arena, device: torch.device) -> None:
    expected = Arena(LAYOUT, 8, device)
    expected.bytes.copy_(arena.bytes)
    for source, destination in ((0, 9), (14, 30), (2, 7)):
        copy_page(arena, source, destination)
        for kv in expected.views("kv"):
            kv[destination] = kv[source].clone()
    assert torch.equal(arena.bytes, expected.bytes)


def test_a_copied_slot_is_the_views_of_its_layers(arena: Arena, device: torch.device) -> None:
    expected = Arena(LAYOUT, 8, device)
    expected.bytes.copy_(arena.bytes)
    for source, destination in ((0, 3), (5, 1)):
        copy_slot(arena, source, destination)
    zero_slot(arena, 6)
    for state in (*expected.views("conv"), *expected.views("ssm")):
        state[3] = state[0].clone()
        state[1] = state[5].clone()
        state[6] = 0
    # Between the layers' states is padding, outside all of their views.
    for ours, theirs in zip(
        (*arena.views("conv"), *arena.views("ssm")),
        (*expected.views("conv"), *expected.views("ssm")),
        strict=True,
    ):
        assert torch.equal(as_bytes(ours), as_bytes(theirs))
    others = torch.tensor([0, 2, 4, 5, 7], device=device)
    slabs = [one.bytes.view(8, -1)[others] for one in (arena, expected)]
    assert torch.equal(*slabs)


@pytest.mark.parametrize(
    "act",
    [
        lambda arena: copy_slot(arena, 0, 3),
        lambda arena: copy_page(arena, 0, 9),
        lambda arena: zero_slot(arena, 6),
    ],
    ids=["copy_slot", "copy_page", "zero_slot"],
)
def test_each_is_one_operation(arena: Arena, act: Callable[[Arena], None]) -> None:
    act(arena)
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as seen:
        act(arena)
    written = [
        event.name for event in seen.events() if event.name in ("aten::copy_", "aten::zero_")
    ]
    assert len(written) == 1
