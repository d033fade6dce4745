"""A call rejected by the extension changes nothing. Its names and types: test_cpp_stub.py."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tasuki.pycache import _cpp_cache
from tasuki.pycache._cpp_cache import (
    CacheError,
    CheckpointKind,
    InvalidArgument,
    TreeConfig,
)
from tests.harness.trees import take, tree_of

PROMPT = np.arange(200, dtype=np.int32)


def test_errors_are_one_family() -> None:
    for name in ("ImpossibleRequest", "InvalidArgument", "IntegrityError"):
        assert issubclass(getattr(_cpp_cache, name), CacheError)


@pytest.mark.parametrize(
    ("tokens", "word"),
    [
        (np.zeros(64, np.int64), "int32"),
        (np.zeros(64, np.uint32), "int32"),
        (np.zeros(64, np.float32), "int32"),
        (np.zeros(64, ">i4"), "int32"),
        (np.zeros((2, 64), np.int32), "dimension"),
        (np.zeros(256, np.int32)[::2], "contiguous"),
        (np.zeros(64, np.int32)[::-1], "contiguous"),
        (np.zeros(0, np.int32), "empty"),
        ([1, 2, 3], "numpy"),
    ],
)
def test_bad_tokens_are_refused(tokens: Any, word: str) -> None:
    tree = tree_of(8)
    for call in (
        lambda: tree.match(tokens),
        lambda: tree.allocate(tokens, capacity_tokens=64, working_slots=1),
        lambda: tree.allocate_to_receive(tokens, capacity_tokens=64, working_slots=1),
    ):
        with pytest.raises(InvalidArgument, match=word):
            call()
    assert tree.stats().allocations == 0
    tree.check_integrity()


@pytest.mark.parametrize(
    "terms",
    [
        {"capacity_tokens": 199, "working_slots": 1},
        {"capacity_tokens": -1, "working_slots": 1},
        {"capacity_tokens": 2**62, "working_slots": 1},
        {"capacity_tokens": 200, "working_slots": -1},
        {"capacity_tokens": 200, "working_slots": 1, "cursor": 7},
    ],
)
def test_bad_terms_are_refused(terms: dict[str, int]) -> None:
    tree = tree_of(8)
    with pytest.raises(InvalidArgument):
        tree.allocate(PROMPT, **terms)
    assert tree.stats().allocations == 0 and tree.stats().slabs_free == 8


@pytest.mark.parametrize(
    "shape",
    [
        {"slabs": 0, "blocks_per_slab": 4, "pages_per_slab": 3},
        {"slabs": 4, "blocks_per_slab": 2, "pages_per_slab": 3},
        {"slabs": 4, "blocks_per_slab": 2, "pages_per_slab": 0},
        {"slabs": 2**31, "blocks_per_slab": 2, "pages_per_slab": 1},
        {"slabs": 4, "blocks_per_slab": 4, "pages_per_slab": 3, "max_ghost_nodes": -1},
    ],
)
def test_bad_shapes_are_refused(shape: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument):
        TreeConfig(**shape)


def test_bad_publishes_change_nothing() -> None:
    tree = tree_of(8)
    allocation = take(tree, PROMPT, capacity=256)
    slot = allocation.working_slots[0]
    for boundary, given in [(0, slot), (-64, None), (201, slot), (100, None), (64, 99), (64, -1)]:
        with pytest.raises(InvalidArgument, match="insert"):
            tree.insert(allocation, boundary, given, CheckpointKind.MARK)
    with pytest.raises(InvalidArgument, match="CheckpointKind"):
        tree.insert(allocation, 64, slot, "mark")  # type: ignore[arg-type]
    stats = tree.stats()
    assert (stats.nodes, stats.checkpoints, allocation.working_slots) == (0, 0, [slot])
    tree.check_integrity()


def test_a_released_lease_holds_nothing() -> None:
    tree = tree_of(8)
    allocation = take(tree, PROMPT, capacity=256)
    with pytest.raises(InvalidArgument, match="another tree"):
        tree_of(8).release(allocation)
    tree.release(allocation)
    uses: list[Callable[[], object]] = [
        lambda: tree.release(allocation),
        lambda: tree.extend(allocation, 300),
        lambda: tree.append(allocation, PROMPT),
        lambda: tree.grant(allocation),
        lambda: tree.take_checkpoint_slot(allocation),
        lambda: tree.insert(allocation, 64, None, CheckpointKind.MARK),
        lambda: allocation.pages,
        lambda: allocation.working_slots,
    ]
    for use in uses:
        with pytest.raises(InvalidArgument, match="released"):
            use()
    assert allocation.match.prompt_tokens == 200
    assert tree.stats().slabs_free == 8


def test_pages_are_read_only_and_outlive_the_call() -> None:
    tree = tree_of(8)
    allocation = take(tree, PROMPT, capacity=256)
    pages = allocation.pages
    with pytest.raises(ValueError, match="read-only"):
        pages[0] = 1
    assert tree.extend(allocation, 500)
    assert pages.tolist() == allocation.pages[: len(pages)].tolist()
    assert pages.dtype == np.int32
