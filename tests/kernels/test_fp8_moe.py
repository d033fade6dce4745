"""A mixture of FP8 experts against the CPU path on what the codes say, in both phases: each matrix
stored for itself, few tokens and many."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.config import ModelConfig, MoeShape
from tasuki.model.forward import Phase
from tasuki.model.ops.linear.reference import quantised_rows
from tasuki.model.ops.moe.experts import moe
from tasuki.model.ops.moe.reference import gated_shared, route
from tasuki.model.weights.layers import MoeWeights
from tasuki.model.weights.matrix import Kind, Matrix
from tests.harness.model_shapes import MOE

from .coded_experts import FEW_TOKENS, exact, layer, naive, on_device, small_batches
from .fp8 import relative
from .tensors import count, noise

__all__ = ["small_batches"]
pytestmark = pytest.mark.usefixtures("poisoned_empty", "small_batches")
SHAPE = MoeShape(6, 2, 24, 40)
CONFIG = replace(MOE, hidden=136, feed_forward=SHAPE)
MANY = FEW_TOKENS + 6
BLOCK, CHANNEL, TENSOR, PLAIN = Kind.FP8_BLOCK, Kind.FP8_CHANNEL, Kind.FP8_TENSOR, Kind.PLAIN


def quantised_naive(x: Tensor, weights: MoeWeights, config: ModelConfig) -> Tensor:
    """naive() of a prompt: what goes into a routed FP8 expert is quantised, and nothing else is;
    the library takes no shared expert of this width. Between products as bf16, as kernels store it,
    since another last bit may be another code."""
    assert isinstance(config.feed_forward, MoeShape)
    shared, gate = weights.shared, weights.shared_gate.float()
    shares, experts = route(x, weights.router, config.feed_forward.chosen)
    gate_up, down = exact(weights.gate_up).plain, exact(weights.down).plain
    rows = x.float() if weights.gate_up.is_plain else quantised_rows(x, 128)
    both = torch.einsum("tk,tcnk->tcn", rows, gate_up[experts]).bfloat16().float()
    up_by, up = both.chunk(2, dim=-1)
    acts = (functional.silu(up_by) * up).flatten(0, 1)
    if not weights.down.is_plain:
        acts = quantised_rows(acts, 128)
    acts = acts.view(*experts.shape, -1)
    routed = torch.einsum("tck,tcnk,tc->tn", acts, down[experts], shares.float())
    x = x.float()
    return routed + gated_shared(x, exact(shared.gate_up), exact(shared.down), gate)


each_mix = pytest.mark.parametrize(
    ("routed", "shared"),
    [(BLOCK, BLOCK), (BLOCK, PLAIN), (PLAIN, TENSOR), (CHANNEL, BLOCK), (TENSOR, CHANNEL)],
)


@each_mix
def test_float32_is_exact(routed: Kind, shared: Kind, device: torch.device) -> None:
    weights = layer(routed, shared, CONFIG, torch.float32)
    x = noise(4, 1, CONFIG.hidden)
    laid_out = on_device(weights, device)
    got = moe(x.to(device), laid_out, CONFIG, count(1, device), None, Phase.STEP)
    torch.testing.assert_close(got.cpu(), naive(x, weights, CONFIG), rtol=1e-5, atol=1e-5)


def test_a_prompt_in_float32_is_not_quantised(device: torch.device) -> None:
    weights = on_device(layer(BLOCK, BLOCK, CONFIG, torch.float32), device)
    x = noise(4, 1, CONFIG.hidden).to(device)
    of_phase = [moe(x, weights, CONFIG, count(1, device), None, phase) for phase in Phase]
    assert torch.equal(*of_phase)


# Each token is held to a twin that quantises what its phase does. How far quantising moves a token
# away from exact numbers depends on what cancels in it: up to 15% of these, so that this bounds
# nothing. What is left: products stored as bf16, which the interpreter cuts where a GPU rounds, and
# in prompts the codes that such a last bit changes.
@pytest.mark.parametrize(("phase", "bound"), [(Phase.STEP, 0.02), (Phase.PROMPT, 0.04)])
@each_mix
def test_bf16_rounds_what_its_phase_rounds(
    routed: Kind, shared: Kind, phase: Phase, bound: float, device: torch.device
) -> None:
    weights = layer(routed, shared, CONFIG, torch.bfloat16)
    x = noise(4, MANY, CONFIG.hidden).bfloat16()
    got = moe(x.to(device), on_device(weights, device), CONFIG, count(MANY, device), None, phase)
    twin = naive if phase is Phase.STEP else quantised_naive
    want = twin(x, weights, CONFIG)
    error = (got.cpu().float() - want).norm(dim=-1) / want.norm(dim=-1)
    assert float(error.max()) < bound


def test_a_row_in_bf16_rounds_no_more_than_its_result(device: torch.device) -> None:
    weights = layer(BLOCK, CHANNEL, CONFIG, torch.bfloat16)
    x = noise(4, 1, CONFIG.hidden).bfloat16()
    got = moe(x.to(device), on_device(weights, device), CONFIG, count(1, device))
    assert relative(got, naive(x, weights, CONFIG)) < 0.01


def test_a_prompt_is_quantised_however_few_its_tokens_are(device: torch.device) -> None:
    weights = on_device(layer(BLOCK, BLOCK, CONFIG, torch.bfloat16), device)
    x = noise(4, MANY, CONFIG.hidden).bfloat16().to(device)
    both = moe(x, weights, CONFIG, count(len(x), device), None, Phase.PROMPT)
    one = moe(x[:1], weights, CONFIG, count(1, device), None, Phase.PROMPT)
    torch.testing.assert_close(one[0], both[0], rtol=0, atol=0)
    exact = moe(x[:1], weights, CONFIG, count(1, device), None, Phase.STEP)
    assert 0.003 < float((exact[0] - one[0]).norm() / exact[0].norm()) < 0.08


def test_rows_past_the_count_change_nothing(device: torch.device) -> None:
    weights = on_device(layer(BLOCK, BLOCK, CONFIG, torch.bfloat16), device)
    tokens = MANY
    x = noise(4, tokens, CONFIG.hidden).bfloat16().to(device)
    alone = moe(x[: tokens - 2], weights, CONFIG, count(tokens - 2, device))
    x[tokens - 2 :] = torch.nan
    padded = moe(x, weights, CONFIG, count(tokens - 2, device))[: tokens - 2]
    torch.testing.assert_close(padded, alone, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered")
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("tokens", [2, MANY])
def test_ranks_with_experts_of_their_own_add_up_to_all(
    tokens: int, phase: Phase, device: torch.device
) -> None:
    """But for the shared expert, which each of these has whole."""
    published_layer = layer(BLOCK, BLOCK, CONFIG, torch.bfloat16)
    weights = on_device(published_layer, device)
    x, rows = noise(3, tokens, CONFIG.hidden).bfloat16().to(device), count(tokens, device)
    whole = moe(x, weights, CONFIG, rows, phase=phase).float()
    total = torch.zeros_like(whole)
    for held in (range(2), range(2, 6)):
        taken = slice(held.start, held.stop)
        gate_up, down = (
            Matrix(
                tuple(segment.each(lambda t, taken=taken: t[taken]) for segment in part.segments)
            )
            for part in (weights.gate_up, weights.down)
        )
        own = replace(weights, gate_up=gate_up, down=down)
        config = replace(CONFIG, feed_forward=replace(SHAPE, held=held))
        total += moe(x, own, config, rows, phase=phase).float()
    shared = published_layer.shared
    gate = published_layer.shared_gate.float()
    beside = gated_shared(x.float().cpu(), exact(shared.gate_up), exact(shared.down), gate)
    assert relative((total - whole).cpu(), beside) < 0.05
