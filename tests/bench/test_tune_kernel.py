"""Launch constants are tried one combination after another, and the module keeps its own."""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

from scripts.tune_kernel import Tried, combinations, row, standing, tried
from tasuki.bench.cases.case import Case


def test_every_combination_of_the_values_is_tried() -> None:
    assert combinations("_STAGES=2,3 _TILE=(64,16)") == [
        {"_STAGES": 2, "_TILE": (64, 16)},
        {"_STAGES": 3, "_TILE": (64, 16)},
    ]


def test_a_module_has_its_own_constants_again_after_a_failure() -> None:
    module = ModuleType("kernel")
    module._STAGES = 3  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError), standing(module, {"_STAGES": 5}):
        assert module._STAGES == 5
        raise RuntimeError
    assert module._STAGES == 3
    with pytest.raises(AttributeError), standing(module, {"_STAGE": 5}):
        pass
    assert not hasattr(module, "_STAGE"), "a name that is misspelt would tune nothing"


def test_a_row_says_whether_the_bits_are_the_same() -> None:
    kept = torch.zeros(2)

    def returns(value: float) -> Callable[[], list[Tensor]]:
        # The next combination overwrites this memory, too.
        return lambda: [kept.fill_(value)]

    def of(value: float) -> Tried:
        return tried([Case("a case", [returns(value)], bytes=1.0)], torch.device("cpu"))

    first, same, other = of(1.0), of(1.0), of(1.5)
    assert row("as it stands", first, first).endswith("us (1.00), same |")
    assert row("_WARPS=4", same, first).endswith("), same |")
    assert row("_WARPS=8", other, first).endswith("), apart by 0.5 |")
