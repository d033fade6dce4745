"""Sorting of rows by expert and back: permute() before the experts' products, unpermute() after.

Shapes: x [T, hidden]; positions, weights [T, chosen]; pairs [T * chosen, hidden]. References:
`naive_permute`, `naive_unpermute` in reference.py. The routing weights are applied by unpermute()
only; a pair of weight 0 is not read. The sum over choices has a fixed order and is kept in float32:
a token's result does not depend on the other tokens. Tokens past rows[0] are neither read nor
written.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tasuki.utils.triton.kernel_spec import KernelSpec

_WARPS = 2


def permute(x: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
    """Return the rows of x [T, hidden], any row stride, sorted by expert. Row positions[t, j] of
    the result is row t of x. Tokens from rows[0] on are not copied."""
    tokens, hidden = x.shape
    chosen = positions.shape[1]
    pairs = torch.empty(tokens * chosen, hidden, dtype=x.dtype, device=x.device)
    _permute[(tokens,)](
        x,
        positions,
        rows,
        pairs,
        x.stride(0),
        HIDDEN=hidden,
        PADDED=triton.next_power_of_2(hidden),
        CHOSEN=chosen,
        num_warps=_WARPS,
    )
    return pairs


def unpermute(pairs: Tensor, positions: Tensor, weights: Tensor, rows: Tensor) -> Tensor:
    """Bring the experts' results back to the order of tokens, and return their sums. Row t of the
    result is the sum over j of weights[t, j] times row positions[t, j] of pairs. Rows from rows[0]
    on are unwritten."""
    tokens, chosen = positions.shape
    hidden = pairs.shape[1]
    out = torch.empty(tokens, hidden, dtype=pairs.dtype, device=pairs.device)
    _unpermute[(tokens,)](
        pairs,
        positions,
        weights,
        rows,
        out,
        HIDDEN=hidden,
        PADDED=triton.next_power_of_2(hidden),
        CHOSEN=chosen,
        num_warps=_WARPS,
    )
    return out


@triton.jit
def _permute(
    x,
    positions,
    rows,
    pairs,
    stride,
    HIDDEN: tl.constexpr,
    PADDED: tl.constexpr,
    CHOSEN: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    if token >= tl.load(rows):
        return
    column = tl.arange(0, PADDED)
    inside = column < HIDDEN
    row = tl.load(x + token * stride + column, inside)
    for choice in tl.static_range(CHOSEN):
        position = tl.load(positions + token * CHOSEN + choice).to(tl.int64)
        tl.store(pairs + position * HIDDEN + column, row, inside)


@triton.jit
def _unpermute(
    pairs,
    positions,
    weights,
    rows,
    out,
    HIDDEN: tl.constexpr,
    PADDED: tl.constexpr,
    CHOSEN: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    if token >= tl.load(rows):
        return
    column = tl.arange(0, PADDED)
    inside = column < HIDDEN
    total = tl.zeros([PADDED], tl.float32)
    for choice in tl.static_range(CHOSEN):
        position = tl.load(positions + token * CHOSEN + choice).to(tl.int64)
        weight = tl.load(weights + token * CHOSEN + choice)
        if weight != 0:
            row = tl.load(pairs + position * HIDDEN + column, inside, 0.0)
            total += weight * row.to(tl.float32)
    tl.store(out + token * HIDDEN + column, total, inside)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, for the models 35B-A3B and
    397B-A17B."""
    return [
        KernelSpec.of(
            f"moe_{name}_{hidden}_{chosen}",
            kernel,
            {"HIDDEN": hidden, "PADDED": hidden, "CHOSEN": chosen},
            _WARPS,
            fp32=fp32,
            i32="positions rows",
        )
        for name, kernel, fp32 in (("permute", _permute, ""), ("unpermute", _unpermute, "weights"))
        for hidden, chosen in ((2048, 8), (4096, 10))
    ]
