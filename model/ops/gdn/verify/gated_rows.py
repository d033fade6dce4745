"""The gated norm at the end of a GDN layer, in a verification of drafts.

Reference: `norm.reference.gated_rms_norm`.
"""

import triton
import triton.language as tl
from torch import Tensor

from tasuki.model.config import DeltaNetConfig
from tasuki.utils.triton.instructions import dependent, wait_for_inputs
from tasuki.utils.triton.kernel_spec import KernelSpec

from ..math import silu

_HEADS = 8
_WARPS = 4


def gated_rows(
    projected: Tensor,
    read: Tensor,
    norm: Tensor,
    config: DeltaNetConfig,
    counts: Tensor,
    rows: Tensor,
) -> Tensor:
    """Return the norm of `read` times silu(z), [B * T, value_heads * value_dim] in projected's
    dtype, see `gdn_verify`.

    projected: see `gdn_verify`. read [B * T, value_heads * value_dim] float32: read-outs of the
    state, undefined for tokens from counts[r] on; norm [value_dim] float32.
    """
    batch, heads, dim = len(counts), config.value_heads, config.value_dim
    output = projected.new_empty(read.shape)
    at_once = min(_HEADS, triton.next_power_of_2(heads))
    _gated_rows_kernel[(projected.shape[0], triton.cdiv(heads, at_once))](
        projected[:, config.conv_channels :],
        projected.stride(0),
        read,
        norm,
        counts,
        rows,
        output,
        projected.shape[0] // batch,
        config.norm_eps,
        VALUE_HEADS=heads,
        VALUE_DIM=dim,
        HEADS=at_once,
        num_warps=_WARPS,
        **dependent(projected),
    )
    return output


@triton.jit(do_not_specialize=["tokens"])
def _gated_rows_kernel(
    z,
    projected_stride,
    read,
    norm,
    counts,
    rows,
    output,
    tokens,
    eps,
    VALUE_HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    HEADS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    token = tl.program_id(0)
    row = token // tokens
    wait_for_inputs(DEPENDENT)
    if row >= tl.load(rows):
        return
    # Later layers compute the other rows too, and must meet no NaN there.
    is_here = token % tokens < tl.load(counts + row)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    dim = tl.arange(0, VALUE_DIM)[None, :]
    column = head * VALUE_DIM + dim
    inside = head < VALUE_HEADS
    wide = token.to(tl.int64)
    at = wide * (VALUE_HEADS * VALUE_DIM) + column
    x = tl.load(read + at, inside & is_here, 0.0)
    gate = tl.load(z + wide * projected_stride + column, inside & is_here, 0.0).to(tl.float32)
    gate = silu(gate) * tl.load(norm + dim)
    x *= tl.rsqrt(tl.sum(x * x, axis=1) / VALUE_DIM + eps)[:, None] * gate
    tl.store(output + at, x.to(output.dtype.element_ty), inside)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, for the models 9B, 4B and 35B-A3B in
    bfloat16."""
    sizes = {"VALUE_HEADS": 32, "VALUE_DIM": 128, "HEADS": _HEADS, "DEPENDENT": True}
    return [
        KernelSpec.of(
            "gdn_gated_rows",
            _gated_rows_kernel,
            sizes,
            _WARPS,
            fp32="read norm",
            i32="counts rows",
        )
    ]
