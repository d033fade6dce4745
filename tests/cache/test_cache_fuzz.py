"""A short run of the fuzzer on the binding's inputs, and the cases asked for by name."""

import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from tasuki.pycache._cpp_cache import CacheError, CheckpointKind, PrefixCache, TreeConfig

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


BAD_TOKENS = {
    "not contiguous": np.zeros(256, np.int32)[::2],
    "reversed": np.zeros(64, np.int32)[::-1],
    "int64": np.zeros(64, np.int64),
    "uint32": np.zeros(64, np.uint32),
    "float32": np.zeros(64, np.float32),
    "other byte order": np.zeros(64, ">i4"),
    "two dimensions": np.zeros((2, 64), np.int32),
    "empty": np.zeros(0, np.int32),
    "a list": [1, 2, 3],
}


@pytest.mark.parametrize("name", BAD_TOKENS)
def test_tokens_of_another_form_raise_a_typed_error(name: str) -> None:
    tree = PrefixCache(TreeConfig(slabs=4, blocks_per_slab=4, pages_per_slab=4))
    tokens: Any = BAD_TOKENS[name]
    with pytest.raises(CacheError):
        tree.match(tokens)
    with pytest.raises(CacheError):
        tree.allocate(tokens, capacity_tokens=64, working_slots=1)
    tree.check_integrity()
    assert tree.stats().allocations == 0


@pytest.mark.parametrize("number", [-(2**63), -(2**31), -1, 2**31, 2**48, 2**63 - 1])
def test_lengths_and_indices_out_of_range_raise_a_typed_error(number: int) -> None:
    tree = PrefixCache(TreeConfig(slabs=4, blocks_per_slab=4, pages_per_slab=4))
    tokens = np.zeros(100, np.int32)
    allocation = tree.allocate(tokens, capacity_tokens=100, working_slots=1)
    assert allocation is not None
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
