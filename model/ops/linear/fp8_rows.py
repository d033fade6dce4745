"""Products of FP8 rows with a stored matrix on a GPU, with one order of sums for any number of
rows.

The library multiplies many rows, where it has the own kernel's bits and is faster: share by share
of the columns. The own kernel (fp8_rows_product.py) multiplies the others. Reference:
`fp8_rows_reference.CodedProducts`.
"""

import torch
from torch import Tensor

from tasuki.model.weights.matrix import Matrix, Plain
from tasuki.model.weights.quantised_segments import Fp8

from .fp8_activations import Fp8Rows
from .fp8_library import block_product, has_shared_product, shared_product
from .fp8_rows_product import Tail, fp8_rows_product, tail_product
from .fp8_rows_reference import shares_of

_LEAST_ROWS = 128
"""Least number of rows for the library, of a weight with one share. From 64 rows on it has the own
kernel's bits; below, it shares out the columns."""
_LEAST_WITH_TAIL = 256
"""The same for a matrix with a tail. The library's product is copied beside the tail's."""
_LEAST_IN_SHARES = 512
"""The same for a weight with several shares. The library multiplies them one after another."""


def has_fp8(matrix: Matrix) -> bool:
    """Return true if the matrix has FP8 rows."""
    return any(isinstance(segment, Fp8) for segment in matrix.segments)


def rows_product(codes: Fp8Rows, x: Tensor, matrix: Matrix) -> Tensor:
    """Return the product with the matrix [out, in] transposed, [T, out] in x's dtype. Its FP8 rows
    are multiplied by codes, its plain rows by x. codes: x [T, in] quantised, with scales of one
    group of columns side by side. If the matrix has no plain rows, x gives the dtype alone."""
    output = x.new_empty(codes.count, matrix.shape[0])
    match matrix.segments:
        case [Fp8() as weight, Plain(values)] if x.dtype is torch.bfloat16:
            tail = Tail(x, values)
            if _is_of_library(codes, weight, x.dtype, _LEAST_WITH_TAIL):
                _by_library(codes, weight, output[:, : weight.shape[0]])
                tail_product(codes, weight, output, tail)
                return output
            return fp8_rows_product(codes, weight, output, tail)
        case [Fp8() as weight] if _is_of_library(codes, weight, x.dtype, _LEAST_ROWS):
            if shares_of(*weight.shape) == 1:
                return block_product(codes, weight)
            _by_library(codes, weight, output)
            return output
    # A tail in float32 fills shared memory.
    begin = 0
    for segment in matrix.segments:
        part = output[:, begin : begin + segment.shape[0]]
        begin += segment.shape[0]
        if isinstance(segment, Fp8):
            fp8_rows_product(codes, segment, part)
        else:
            assert isinstance(segment, Plain), f"{segment.kind} beside FP8 has no kernel"
            torch.mm(x, segment.values.t(), out=part)
    return output


def _is_of_library(codes: Fp8Rows, weight: Fp8, dtype: torch.dtype, least: int) -> bool:
    """Return true if the library multiplies these rows by the weight. dtype: dtype of the result.
    least: least number of rows for a weight with one share."""
    shares = shares_of(*weight.shape)
    least = least if shares == 1 else _LEAST_IN_SHARES
    return codes.count >= least and has_shared_product(weight, dtype, shares)


def _by_library(codes: Fp8Rows, weight: Fp8, output: Tensor) -> None:
    """Write the library's product into output [T, out], any row stride."""
    shares = shares_of(*weight.shape)
    if shares == 1:
        output.copy_(block_product(codes, weight))
    else:
        shared_product(codes, weight, shares, output)
