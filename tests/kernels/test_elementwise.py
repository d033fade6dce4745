"""Norms, SwiGLU and the queries' way into attention equal the CPU operators row by row."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.ops.attention.page_rows import fp8_views
from tasuki.model.ops.attention.rope import RotaryAngles, apply_rotary
from tasuki.model.ops.linear.swiglu import swiglu
from tasuki.model.ops.norm import reference as norm
from tasuki.model.ops.norm.rms_norm import add_rms_norm, rms_norm
from tasuki.pycache.fp8_rows import encode_rows
from tasuki.pycache.layout import PAGE_TOKENS
from tests.harness.covering import every_value

from .attention import Heads, attention_case
from .tensors import close

pytestmark = pytest.mark.usefixtures("poisoned_empty")
PRECISIONS = {"fp32": (torch.float32, 2e-6), "bf16": (torch.bfloat16, 1e-2)}
each_dtype = pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS.values(), ids=PRECISIONS)


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


@every_value(
    heads={
        "quarter": Heads(4, 2, 64),
        "three-eighths": Heads(24, 4, 128, rotary=0.375),
        "whole": Heads(34, 17, 64, rotary=1.0),
    },
    precision=PRECISIONS,
)
def test_queries_keys_and_values(
    heads: Heads, precision: tuple[torch.dtype, float], device: torch.device
) -> None:
    dtype, tolerance = precision
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


@every_value(
    heads={
        "quarter": Heads(4, 2, 64),
        "three-eighths": Heads(9, 9, 128, rotary=0.375),
        "whole": Heads(2, 1, 64, rotary=1.0),
    },
    dtype={name: dtype for name, (dtype, _) in PRECISIONS.items()},
)
def test_fp8_rows_are_the_codes_of_what_pages_of_numbers_hold(
    heads: Heads, dtype: torch.dtype, device: torch.device
) -> None:
    """They are equal to the bit, for numbers of all sizes and for NaN; nothing else is written."""
    runs = [3, 1, 4], [62, 0, 7]
    numbers = attention_case(heads, *runs, dtype, device)
    rounded = attention_case(heads, *runs, dtype, device, fp8=True)
    rounded.weights = numbers.weights
    generator = torch.Generator().manual_seed(11)
    sizes = torch.randint(-40, 40, (8, 1), generator=generator).float().exp2()
    projected = (numbers.projected().float() * sizes.to(device)).to(dtype)
    projected[1] = 0
    projected[4, -3] = torch.inf
    projected[5, -heads.dim - 2 * heads.keys : -heads.dim] *= 2.0**-30
    for case in (numbers, rounded):
        case.kv.view(torch.uint8).fill_(0xFF)
        case.queries(projected, case.places(rows=7), 80)
    got_codes, got_scales = fp8_views(rounded.kv.cpu())
    written = torch.zeros(got_scales.shape, dtype=torch.bool)
    # The last of the eight tokens is padding.
    for owner, position in ((0, 62), (0, 63), (0, 64), (1, 0), (2, 7), (2, 8), (2, 9)):
        part, offset = position // PAGE_TOKENS, position % PAGE_TOKENS
        page = rounded.pages[owner][part]
        written[page, :, :, offset] = True
        codes, scales = encode_rows(numbers.kv[numbers.pages[owner][part], :, :, offset].cpu())
        assert torch.equal(got_scales[page, :, :, offset], scales)
        finite = scales != 255
        assert torch.equal(got_codes[page, :, :, offset][finite], codes[finite])
    assert written.sum() == 7 * heads.keys * 2
    assert (got_codes[~written] == 0xFF).all() and (got_scales[~written] == 0xFF).all()
