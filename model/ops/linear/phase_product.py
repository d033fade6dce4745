"""Products with a stored matrix on a GPU. The phase of the rows decides the precision: STEP (an
answer's tokens) or PROMPT.

    stored as    STEP           PROMPT
    plain        library        library
    FP8          fp8_product    the library's W8A8 for matrices it takes, else fp8_product
    NVFP4        nvfp4_product  nvfp4_product

The choice depends on the matrix, its device and the model's dtype, never on the number of rows.
float32 activations are never quantised: such a model is exact. Reference: `reference.product`.
"""

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.forward import Phase
from tasuki.model.weights.kernel_layout import NvFp4Halves
from tasuki.model.weights.matrix import Matrix, Plain, Segment
from tasuki.model.weights.quantised_segments import Fp8

from .fp8_activations import quantised_swiglu
from .fp8_library import block_product, has_block_product, library_product
from .fp8_product import fp8_product, fp8_product_swiglu, tile_of_prompts
from .nvfp4_product import nvfp4_product
from .nvfp4_product import tile_of_prompts as nvfp4_tile_of_prompts
from .swiglu import swiglu


def phase_product(x: Tensor, matrix: Matrix, phase: Phase) -> Tensor:
    """Return x [T, in] times the matrix [out, in] transposed, [T, out] in x's dtype. A quantised
    matrix is multiplied in the phase's precision, a plain one in x's dtype. x: any row stride."""
    if matrix.is_plain:
        return functional.linear(x, matrix.plain)
    if phase is Phase.PROMPT:
        parts = [_of_prompt(x, segment) for segment in matrix.segments]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
    output = x.new_empty(x.shape[0], matrix.shape[0])
    match matrix.segments:
        case [Fp8() as weight, Plain(tail)]:
            return fp8_product(x, weight, output, tail=tail)
    begin = 0
    for segment in matrix.segments:
        part = output[:, begin : begin + segment.shape[0]]
        begin += segment.shape[0]
        _of_step(x, segment, part)
    return output


def phase_gate_up(x: Tensor, gate_up: Matrix, phase: Phase) -> Tensor:
    """Multiply x by gate_up [2 * width, in] transposed in the phase's precision. Return silu(gate)
    * up, [T, width]."""
    match gate_up.segments:
        case [Fp8() as weight] if phase is Phase.STEP:
            return fp8_product_swiglu(x, weight)
    return swiglu(phase_product(x, gate_up, phase))


def phase_swiglu(gate_up: Tensor, down: Matrix, phase: Phase) -> Tensor:
    """Compute silu(gate) * up from gate_up [T, 2 * in], and multiply it by down [out, in]
    transposed in the phase's precision. Return [T, out]."""
    match down.segments:
        case [Fp8() as weight] if phase is Phase.PROMPT and has_block_product(
            weight, gate_up.dtype
        ):
            return block_product(quantised_swiglu(gate_up), weight)
    return phase_product(swiglu(gate_up), down, phase)


def _of_prompt(x: Tensor, segment: Segment) -> Tensor:
    if isinstance(segment, Fp8):
        found = library_product(x, segment)
        if found is not None:
            return found
        return fp8_product(x, segment, tile=tile_of_prompts(x.dtype))
    if isinstance(segment, NvFp4Halves):
        return nvfp4_product(x, segment, tile=nvfp4_tile_of_prompts(x.dtype))
    assert isinstance(segment, Plain), f"{segment.kind} has no kernel"
    return functional.linear(x, segment.values)


def _of_step(x: Tensor, segment: Segment, output: Tensor) -> None:
    """Multiply x by one segment in the precision of `Phase.STEP`. Write the product into output [T,
    out], any row stride."""
    if isinstance(segment, Fp8):
        fp8_product(x, segment, output)
    elif isinstance(segment, NvFp4Halves):
        nvfp4_product(x, segment, output)
    else:
        assert isinstance(segment, Plain), f"{segment.kind} has no kernel"
        torch.mm(x, segment.values.t(), out=output)
