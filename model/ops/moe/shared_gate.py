"""Sum of the shared expert and the routed ones: routed + sigmoid(gate . x) * shared.

Shapes: x, shared, routed [T, hidden], one dtype, row-strided; gate [1, hidden]. Reference:
`naive_gate_sigmoid_mul_add` in reference.py. The dot product, the sigmoid and the sum are float32
throughout. Tokens past rows[0] are neither read nor written.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tasuki.utils.triton.kernel_spec import KernelSpec

_WARPS = 8


def fused_gate_sigmoid_mul_add(
    x: Tensor, gate: Tensor, shared: Tensor, routed: Tensor, rows: Tensor
) -> Tensor:
    """Return routed + sigmoid(gate . x) * shared as a new tensor [T, hidden]. rows [1]: number of
    valid tokens."""
    tokens, hidden = x.shape
    out = torch.empty(tokens, hidden, dtype=x.dtype, device=x.device)
    _gate_sigmoid_mul_add[(tokens,)](
        x,
        gate,
        shared,
        routed,
        rows,
        out,
        x.stride(0),
        shared.stride(0),
        routed.stride(0),
        HIDDEN=hidden,
        PADDED=triton.next_power_of_2(hidden),
        num_warps=_WARPS,
    )
    return out


@triton.jit
def _gate_sigmoid_mul_add(
    x,
    gate,
    shared,
    routed,
    rows,
    out,
    x_stride,
    shared_stride,
    routed_stride,
    HIDDEN: tl.constexpr,
    PADDED: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    if token >= tl.load(rows):
        return
    column = tl.arange(0, PADDED)
    inside = column < HIDDEN
    row = tl.load(x + token * x_stride + column, inside, 0.0).to(tl.float32)
    weight = tl.load(gate + column, inside, 0.0).to(tl.float32)
    # Load these before the reduction, so it does not separate two trips to memory.
    added = tl.load(shared + token * shared_stride + column, inside, 0.0).to(tl.float32)
    total = tl.load(routed + token * routed_stride + column, inside, 0.0).to(tl.float32)
    opened = tl.sigmoid(tl.sum(row * weight, axis=0))
    tl.store(out + token * HIDDEN + column, total + opened * added, inside)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, for the models 35B-A3B and
    397B-A17B."""
    return [
        KernelSpec.of(
            f"moe_gate_sigmoid_mul_add_{hidden}",
            _gate_sigmoid_mul_add,
            {"HIDDEN": hidden, "PADDED": hidden},
            _WARPS,
            i32="rows",
        )
        for hidden in (2048, 4096)
    ]
