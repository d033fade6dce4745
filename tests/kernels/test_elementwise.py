"""Norms, SwiGLU and the queries' way into attention equal the CPU operators row by row."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.ops.attention.rope import RotaryAngles, apply_rotary
from tasuki.model.ops.linear.swiglu import swiglu
from tasuki.model.ops.norm import reference as norm
from tasuki.model.ops.norm.rms_norm import add_rms_norm, rms_norm

from .attention import Heads, attention_case
from .tensors import close

pytestmark = pytest.mark.usefixtures("poisoned_empty")
each_dtype = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)], ids=["fp32", "bf16"]
)


def strided(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(rows, columns + 8, device=device).to(dtype)[:, :columns]


@each_dtype
@pytest.mark.parametrize("hidden", [64, 96, 1280])
def test_norm_with_and_without_a_sum_before_it(
    hidden: int, dtype: torch.dtype, tolerance: float, device: torch.device
) -> None:
    torch.manual_seed(3)
    branch = strided(5, hidden, dtype, device)
    residual = torch.randn(5, hidden, device=device).to(dtype)
    weight = 1 + 0.3 * torch.randn(hidden, device=device)
    total = branch + residual
    close(rms_norm(branch, weight, 1e-6), norm.rms_norm(branch, weight, 1e-6).cpu(), tolerance)
    normed, summed = add_rms_norm(branch, residual, weight, 1e-6)
    close(normed, norm.rms_norm(total, weight, 1e-6).cpu(), tolerance)
    close(summed, total.cpu(), tolerance)
    assert summed.data_ptr() == residual.data_ptr()


@each_dtype
@pytest.mark.parametrize("width", [32, 100, 2048])
def test_swiglu(width: int, dtype: torch.dtype, tolerance: float, device: torch.device) -> None:
    torch.manual_seed(4)
    gate_up = strided(3, 2 * width, dtype, device)
    gate, up = gate_up.float().chunk(2, dim=-1)
    close(swiglu(gate_up), (functional.silu(gate) * up).to(dtype).cpu(), tolerance)


@each_dtype
@pytest.mark.parametrize(
    "heads",
    [Heads(4, 2, 64), Heads(24, 4, 128, rotary=0.375), Heads(34, 17, 64, rotary=1.0)],
    ids=["quarter", "three-eighths", "whole"],
)
def test_queries_keys_and_values(
    heads: Heads, dtype: torch.dtype, tolerance: float, device: torch.device
) -> None:
    case = attention_case(heads, [3, 1, 2], [62, 0, 7], dtype, device)
    config, places = case.config, case.places(rows=5)
    projected = case.projected()
    untouched = case.kv.cpu().isnan()
    q = case.queries(projected, places, 80)
    _, kv = case.oracle(torch.cat([projected[:5], projected.new_zeros(1, case.width)]), 3)
    last = case.pages[2][0], slice(None), slice(None), 8
    assert case.kv[last].isnan().all(), "the sixth token is padding"
    kv[last] = torch.nan
    assert untouched.logical_and(case.kv.cpu().isnan()).sum() == kv.isnan().sum()
    close(case.kv, kv, tolerance)

    split = projected[:, : 2 * heads.queries * heads.dim].unflatten(1, (heads.queries, -1))
    normed = norm.rms_norm(split[..., : heads.dim], case.weights.q_norm, config.norm_eps)
    cos, sin = RotaryAngles.of(config).table(places.positions)
    close(q[:5], apply_rotary(normed, cos, sin)[:5].cpu(), tolerance)
    assert q[5:].isnan().all()
