"""FP8 rows cost a trained model no more than 1.2 times what scales of powers of two cost it."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tasuki.model.ops.linear.fp8_rows_reference import CodedProducts
from tasuki.model.ops.linear.reference import EXACT
from tasuki.model.quantise.checkpoint import RECIPES, fp8_block, quantise_folder
from tasuki.model.weights.matrix import Kind
from tasuki.model.weights.quantised_segments import BLOCK, Fp8
from tools.rounding.__main__ import log_probabilities
from tools.rounding.products import FloatScales, PowerScales, requantised
from tools.rounding.texts import EMBEDDED, TOOL_CALLER, dialogues, prose

TEXTS = {"embedded": (EMBEDDED, prose, 400), "tool caller": (TOOL_CALLER, dialogues, 4096)}


def divergence(want: Tensor, got: Tensor) -> float:
    return float((want.exp() * (want - got)).sum(-1).mean())


@pytest.mark.parametrize("name", TEXTS)
def test_float_scales_cost_less_than_powers_of_two(name: str, tmp_path: Path) -> None:
    folder, text, count = TEXTS[name]
    quantise_folder(folder, tmp_path / "fp8", RECIPES["fp8"])
    tokens = text(count)
    want, float_scales, powers = (
        log_probabilities(tmp_path / "fp8", torch.float32, products, tokens)
        for products in (EXACT, FloatScales(), PowerScales())
    )
    assert 0 < divergence(want, float_scales) <= 1.2 * divergence(want, powers)


def test_the_instruction_costs_what_its_rows_cost(tmp_path: Path) -> None:
    """Sums cut to 13 bits lose little beside the rounding of the rows, though they move other codes
    of later layers."""
    quantise_folder(EMBEDDED, tmp_path / "fp8", RECIPES["fp8"])
    want, rows, bits = (
        log_probabilities(tmp_path / "fp8", torch.float32, products, prose(60))
        for products in (EXACT, FloatScales(), CodedProducts())
    )
    assert divergence(rows, bits) > 0
    assert divergence(want, bits) < 2 * divergence(want, rows)


def test_weights_quantised_anew_have_powers_of_two() -> None:
    made = fp8_block(torch.randn(130, 200, generator=torch.Generator().manual_seed(1)))
    scales = made["weight_scale_inv"].float()
    weight = Fp8(made["weight"], scales, BLOCK, BLOCK, Kind.FP8_BLOCK)
    found = requantised(weight)
    assert torch.equal(found.scales.log2(), found.scales.log2().round())
    assert bool((found.scales >= weight.scales).all()) and found.shape == weight.shape
    want = weight.rows(0, 130)
    assert float((found.rows(0, 130) - want).norm() / want.norm()) < 0.04
