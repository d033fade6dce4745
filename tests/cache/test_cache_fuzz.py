"""A short run of the fuzzer on the binding's inputs, and the cases asked for by name."""

import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from tasuki.pycache._cpp_cache import CacheError, CheckpointKind
from tests.harness.trees import take, tree_of

BENCH = Path(__file__).resolve().parents[2] / "bench" / "cache"


@pytest.fixture
def fuzz(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    import fuzz as module

    yield module
    sys.modules.pop("fuzz", None)


@pytest.mark.parametrize("seed", range(1_000, 1_006))
def test_malformed_calls_are_refused_and_change_nothing(fuzz: Any, seed: int) -> None:
    fuzzer = fuzz.Fuzzer(Random(seed))
    for _ in range(2_000):
        fuzzer.step()
    fuzzer.tree.check_integrity()
    assert 0 < fuzzer.refused < fuzzer.calls


@pytest.mark.parametrize("number", [-(2**63), -(2**31), -1, 2**31, 2**48, 2**63 - 1])
def test_lengths_and_indices_out_of_range_raise_a_typed_error(number: int) -> None:
    tree, tokens = tree_of(4), np.zeros(100, np.int32)
    allocation = take(tree, tokens)
    for call in (
        lambda: tree.allocate(tokens, capacity_tokens=number, working_slots=1),
        lambda: tree.allocate(tokens, capacity_tokens=100, working_slots=number),
        lambda: tree.insert(allocation, number, None, CheckpointKind.MARK),
        lambda: tree.match(tokens, b"", number),
        lambda: tree.free_quarantined(number),
    ):
        with pytest.raises(CacheError):
            call()
    with pytest.raises((CacheError, TypeError)):
        tree.insert(allocation, 64, number, CheckpointKind.MARK)
    tree.check_integrity()
    assert tree.stats().allocations == 1
