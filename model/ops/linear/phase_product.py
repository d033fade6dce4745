"""Products with a stored matrix on a GPU. The activations of the rows' phase decide the precision.

    stored as    MODEL          LIBRARY                                                 ROWS
    plain        library        library                                                 library
    FP8          fp8_product    the library's W8A8 for matrices it takes, fp8_product   fp8_rows
    NVFP4        nvfp4_product  nvfp4_product                                           as MODEL

The precision depends on the matrix, its device and the model's dtype, never on the number of rows.
Of MODEL and LIBRARY, float32 activations are never quantised: such a model is exact. References:
`reference.product`, and `fp8_rows_reference.coded_product` of ROWS.
"""

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.forward import Activations
from tasuki.model.weights.kernel_layout import NvFp4Halves
from tasuki.model.weights.matrix import Matrix, Plain, Segment
from tasuki.model.weights.quantised_segments import Fp8

from .fp8_activations import quantised, quantised_swiglu
from .fp8_library import (
    block_product,
    coded_product,
    has_block_product,
    has_coded_product,
    library_product,
)
from .fp8_product import fp8_product, fp8_product_swiglu, tile_of_prompts
from .fp8_rows import has_fp8, rows_product
from .nvfp4_product import nvfp4_product
from .nvfp4_product import tile_of_prompts as nvfp4_tile_of_prompts
from .swiglu import swiglu


def phase_product(x: Tensor, matrix: Matrix, activations: Activations) -> Tensor:
    """Return x [T, in] times the matrix [out, in] transposed, [T, out] in x's dtype. FP8 rows of
    the matrix are multiplied by activations of this form, others by x. x: any row stride."""
    if matrix.is_plain:
        return functional.linear(x, matrix.plain)
    if activations is Activations.ROWS and has_fp8(matrix):
        return rows_product(quantised(x), x, matrix)
    if activations is Activations.LIBRARY:
        if has_coded_product(matrix, x.dtype):
            return coded_product(quantised(x), x, matrix)
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


def phase_gate_up(x: Tensor, gate_up: Matrix, activations: Activations) -> Tensor:
    """Multiply x by gate_up [2 * width, in] transposed, with activations of this form. Return
    silu(gate) * up, [T, width]."""
    match gate_up.segments:
        case [Fp8() as weight] if activations is Activations.MODEL:
            return fp8_product_swiglu(x, weight)
    return swiglu(phase_product(x, gate_up, activations))


def phase_swiglu(gate_up: Tensor, down: Matrix, activations: Activations) -> Tensor:
    """Compute silu(gate) * up from gate_up [T, 2 * in], and multiply it by down [out, in]
    transposed, with activations of this form. Return [T, out]."""
    match down.segments:
        case [Fp8() as weight] if activations is Activations.LIBRARY and has_block_product(
            weight, gate_up.dtype
        ):
            return block_product(quantised_swiglu(gate_up), weight)
        case [Fp8()] if activations is Activations.ROWS:
            return rows_product(quantised_swiglu(gate_up), gate_up, down)
    return phase_product(swiglu(gate_up), down, activations)


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
    """Multiply x by one segment in the precision of `Activations.MODEL`. Write the product into
    output [T, out], any row stride."""
    if isinstance(segment, Fp8):
        fp8_product(x, segment, output)
    elif isinstance(segment, NvFp4Halves):
        nvfp4_product(x, segment, output)
    else:
        assert isinstance(segment, Plain), f"{segment.kind} has no kernel"
        torch.mm(x, segment.values.t(), out=output)
