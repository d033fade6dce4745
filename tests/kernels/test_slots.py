"""Slots and pages are copied whole, to their destinations and nowhere else."""

from collections.abc import Callable

import pytest
import torch
from tasuki.pycache.arena import Arena
from tasuki.pycache.copies import copy_page, copy_slot, zero_slot
from tasuki.pycache.kernels.slots import copy_pages, copy_slots, zero_slots
from tasuki.pycache.layout import CacheLayout, LayerKind


def layout() -> CacheLayout:
    """More state layers than fit the kernel's block evenly; three pages a slab and some waste."""
    return CacheLayout(
        layer_kinds=(LayerKind.GDN, LayerKind.GDN, LayerKind.FULL, LayerKind.GDN, LayerKind.FULL),
        kv_heads=1,
        head_dim=16,
        kv_dtype="bfloat16",
        conv_channels=72,
        conv_columns=3,
        conv_dtype="bfloat16",
        value_heads=2,
        value_dim=32,
        key_dim=32,
        ssm_dtype="float32",
    )


@pytest.fixture
def arenas(device: torch.device) -> tuple[Arena, Arena]:
    """Two of random bytes, equal to each other."""
    ours, theirs = Arena(layout(), 8, device), Arena(layout(), 8, device)
    ours.bytes.random_(0, 256)
    theirs.bytes.copy_(ours.bytes)
    return ours, theirs


@pytest.mark.parametrize(
    ("copy", "twin", "pairs"),
    [
        (copy_slots, copy_slot, [(0, 3), (0, 7), (5, 1), (2, 4)]),
        (copy_pages, copy_page, [(0, 9), (0, 1), (14, 30), (2, 7)]),
    ],
    ids=["slots", "pages"],
)
def test_copies_are_the_twins(
    copy: Callable[[Arena, torch.Tensor, torch.Tensor], None],
    twin: Callable[[Arena, int, int], None],
    pairs: list[tuple[int, int]],
    arenas: tuple[Arena, Arena],
    device: torch.device,
) -> None:
    ours, theirs = arenas
    # The last pair is past the row count.
    for source, destination in pairs[:-1]:
        twin(theirs, source, destination)
    copy(
        ours,
        torch.tensor(pairs, dtype=torch.int32, device=device),
        torch.tensor([3], dtype=torch.int32, device=device),
    )
    assert torch.equal(ours.bytes, theirs.bytes)


def test_zeroed_slots_are_the_twins(arenas: tuple[Arena, Arena], device: torch.device) -> None:
    ours, theirs = arenas
    for slot in (6, 2):
        zero_slot(theirs, slot)
    zero_slots(
        ours,
        torch.tensor([6, 2, 4], dtype=torch.int32, device=device),
        torch.tensor([2], dtype=torch.int32, device=device),
    )
    assert torch.equal(ours.bytes, theirs.bytes)
