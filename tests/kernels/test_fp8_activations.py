"""Rows as codes and scales compared with their reference: groups that fill no block, zeros,
padding."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.ops.linear.fp8_activations import (
    Fp8Rows,
    quantised,
    quantised_swiglu,
    quantised_whole,
)
from tasuki.model.ops.linear.fp8_norm import fp8_rms_codes, fp8_rms_norm
from tasuki.model.ops.linear.reference import quantised_rows
from tasuki.model.ops.norm.rms_norm import add_rms_norm, rms_norm

from .tensors import noise

pytestmark = pytest.mark.usefixtures("poisoned_empty")
SHAPES = [(1, 128), (5, 200), (7, 1536)]


def numbers(rows: Fp8Rows, group: int) -> Tensor:
    scales = rows.scales.cpu().repeat_interleave(group, 1)[:, : rows.values.shape[1]]
    return rows.values.cpu().float() * scales


def uneven(rows: int, columns: int) -> Tensor:
    """Return rows with magnitudes from 2^-8 to 2^8, and zeros."""
    x = noise(1, rows, columns) * torch.exp2(
        noise(2, rows, columns // 8).repeat_interleave(8, 1) * 3
    )
    x[0, : min(columns, 128)] = 0
    return x.bfloat16()


def check(got: Fp8Rows, x: Tensor, group: int) -> None:
    rows = len(x)
    assert got.count == rows and len(got.values) == -(-rows // 4) * 4
    found, want = numbers(got, group), quantised_rows(x, group)
    # Equal to the bit, on every machine.
    torch.testing.assert_close(found[:rows], want, rtol=0, atol=0)
    assert not bool(found[rows:].any())


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_groups_of_128_columns(rows: int, columns: int, device: torch.device) -> None:
    wide = functional.pad(uneven(rows, columns), (0, 24), value=torch.nan)
    got = quantised(wide.to(device)[:, :columns])
    # The library needs the scales of one group side by side.
    assert got.scales.stride() == (1, len(got.values))
    check(got, wide[:, :columns], 128)


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_whole_rows(rows: int, columns: int, device: torch.device) -> None:
    x = uneven(rows, columns)
    check(quantised_whole(x.to(device)), x, columns)


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_activations_of_swiglu(rows: int, columns: int, device: torch.device) -> None:
    gate_up = uneven(rows, 2 * columns).clamp(-60, 60)
    gate, up = gate_up.float().chunk(2, dim=-1)
    got = quantised_swiglu(gate_up.to(device))
    want = quantised_rows(functional.silu(gate) * up, 128)
    found = numbers(got, 128)
    # A last bit of the activation may be the next code.
    others = (found[:rows] - want).abs() > 1e-5 * want.abs()
    assert float(others.float().mean()) < 0.02
    torch.testing.assert_close(found[:rows], want, rtol=0.13, atol=0)
    assert not bool(found[rows:].any())


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("added", [False, True])
def test_a_norm_is_quantised_in_its_pass(
    rows: int, columns: int, added: bool, device: torch.device
) -> None:
    residual, weight = uneven(rows, columns).to(device), 1 + 0.1 * noise(4, columns).to(device)
    branch = noise(3, rows, columns).bfloat16().to(device) if added else None
    if branch is None:
        want = rms_norm(residual, weight, 1e-6)
    else:
        want, total = add_rms_norm(branch, residual.clone(), weight, 1e-6)
    alone = fp8_rms_codes(branch, residual.clone(), weight, 1e-6)
    codes, normed = fp8_rms_norm(branch, residual, weight, 1e-6)
    assert torch.equal(normed, want)
    assert added is False or torch.equal(residual, total)
    check(codes, want.cpu(), 128)
    check(alone, want.cpu(), 128)
