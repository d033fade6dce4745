"""The gated norm at the end of a GDN layer's prefill. It brings outputs from chunk order back to
the order of rows.

Reference: `norm.reference.gated_rms_norm`.
"""

import triton
import triton.language as tl
from torch import Tensor

from tasuki.model.config import DeltaNetConfig
from tasuki.utils.triton.kernel_spec import KernelSpec

from .math import silu
from .prefill_plan import CHUNK, GdnPrefillPlan

_WARPS = 4


def gdn_norm(
    projected: Tensor, o: Tensor, norm: Tensor, config: DeltaNetConfig, plan: GdnPrefillPlan
) -> Tensor:
    """Return the norm of o times silu(z), [T, value_heads * value_dim] in projected's dtype.

    projected [T, conv_channels | z | ...], any row stride; o [N, value_heads, CHUNK, value_dim]:
    the scan's outputs by chunk; norm [value_dim] float32.
    """
    heads, dim = config.value_heads, config.value_dim
    output = projected.new_empty(plan.tokens, heads * dim)
    _gdn_norm_kernel[(heads, plan.chunks.shape[0])](
        projected[:, config.conv_channels :],
        projected.stride(0),
        o,
        norm,
        plan.chunks,
        output,
        config.norm_eps,
        VALUE_HEADS=heads,
        VALUE_DIM=dim,
        CHUNK=CHUNK,
        num_warps=_WARPS,
    )
    return output


@triton.jit
def _gdn_norm_kernel(
    z,
    projected_stride,
    o,
    norm,
    chunks,
    output,
    eps,
    VALUE_HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    CHUNK: tl.constexpr,
):
    head = tl.program_id(0)
    chunk = tl.program_id(1)
    first = tl.load(chunks + 4 * chunk)
    count = tl.load(chunks + 4 * chunk + 1)
    token = tl.arange(0, CHUNK)
    dim = tl.arange(0, VALUE_DIM)
    inside = (token < count)[:, None]
    row = (first + token).to(tl.int64)[:, None]
    tile = token[:, None] * VALUE_DIM + dim[None, :]
    at = (chunk.to(tl.int64) * VALUE_HEADS + head) * (CHUNK * VALUE_DIM)
    x = tl.load(o + at + tile, mask=inside, other=0.0).to(tl.float32)
    column = head * VALUE_DIM + dim[None, :]
    gate = tl.load(z + row * projected_stride + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / VALUE_DIM + eps)[:, None]
    normed = x * scale * tl.load(norm + dim)[None, :] * silu(gate)
    to = output + row * (VALUE_HEADS * VALUE_DIM) + column
    tl.store(to, normed.to(output.dtype.element_ty), mask=inside)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, for the models 9B, 4B and 35B-A3B in
    bfloat16."""
    sizes = {"VALUE_HEADS": 32, "VALUE_DIM": 128, "CHUNK": CHUNK}
    return [KernelSpec.of("gdn_norm", _gdn_norm_kernel, sizes, _WARPS, fp32="norm", i32="chunks")]
