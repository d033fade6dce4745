"""The SwiGLU activation silu(gate) * up, for rows with gate and up side by side from one matrix
product.

Reference: `silu(gate) * up` of `reference.swiglu`, here without rounding between the two.
"""

import triton
import triton.language as tl
from torch import Tensor

from tasuki.utils.triton.instructions import dependent, wait_for_inputs
from tasuki.utils.triton.kernel_spec import KernelSpec

_BLOCK = 1024
_WARPS = 4


def swiglu(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up, [T, width] in gate_up's dtype. gate_up: [T, 2 * width], gate first,
    any row stride."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    output = gate_up.new_empty(rows, width)
    blocks = triton.cdiv(width, _BLOCK)
    _swiglu_kernel[(rows * blocks,)](
        gate_up,
        gate_up.stride(0),
        output,
        WIDTH=width,
        BLOCK=_BLOCK,
        num_warps=_WARPS,
        **dependent(gate_up),
    )
    return output


@triton.jit
def _swiglu_kernel(
    gate_up,
    stride,
    output,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    blocks: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // blocks).to(tl.int64)
    columns = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    start = gate_up + row * stride + columns
    wait_for_inputs(DEPENDENT)
    gate = tl.load(start, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(start + WIDTH, mask=inside, other=0.0).to(tl.float32)
    result = gate * tl.sigmoid(gate) * up
    tl.store(output + row * WIDTH + columns, result.to(output.dtype.element_ty), mask=inside)


def compile_specs() -> list[KernelSpec]:
    """Return the specs to compile the kernels ahead of time, in the shapes of the 9B model."""
    sizes = {"WIDTH": 12288, "BLOCK": _BLOCK, "DEPENDENT": True}
    return [KernelSpec.of("swiglu", _swiglu_kernel, sizes, _WARPS)]
