"""Products of quantised rows with FP8 weights by PyTorch's library (W8A8), for the matrices it
supports.

`torch._scaled_mm` on Hopper multiplies two kinds of operands. Rows with a scale per 128 columns go
with weights with a scale per 128 x 128. Rows with one scale go with weights with one scale per row.
It sums each 128 columns in float32. On Blackwell it takes the second kind only. For torch 2.11 with
cuBLAS 12.9 or later: K / 128 is a multiple of 4 and `out` one of 16. Reference: `reference.product`
of `reference.quantised_rows`.
"""

from functools import cache

import torch
from torch import Tensor

from tasuki.model.weights.matrix import Matrix, Plain
from tasuki.model.weights.quantised_segments import Fp8

from .fp8_activations import Fp8Rows, quantised, quantised_whole
from .fp8_scales import GROUP

_HOPPER = (9, 0)
_LEAST = (8, 9)


def has_block_product(weight: Fp8, dtype: torch.dtype) -> bool:
    """Return true if the library can multiply this weight, with a scale per 128 x 128 block, by
    quantised rows from activations of `dtype`."""
    rows, columns = weight.shape
    return (
        dtype is torch.bfloat16
        and (weight.block_rows, weight.block_columns) == (GROUP, GROUP)
        and columns % (4 * GROUP) == 0
        and rows % 16 == 0
        and _capability(weight.device) == _HOPPER
    )


def has_row_product(weight: Fp8, dtype: torch.dtype) -> bool:
    """Return true if the library can multiply this weight, with a scale per row, by quantised rows
    from activations of `dtype`."""
    rows, columns = weight.shape
    return (
        dtype is torch.bfloat16
        and (weight.block_rows, weight.block_columns) == (1, columns)
        and columns % 16 == 0
        and rows % 16 == 0
        and _capability(weight.device) >= _LEAST
    )


def block_product(x: Fp8Rows, weight: Fp8) -> Tensor:
    """Return quantised rows x times the weight transposed, [T, out] bf16. REQUIRES:
    has_block_product(weight), and x has a scale for each 128 columns."""
    return _scaled(x, weight)


def has_coded_product(matrix: Matrix, dtype: torch.dtype) -> bool:
    """Return true if coded_product() can multiply by this matrix. dtype: dtype of activations."""
    match matrix.segments:
        case [Fp8() as weight] | [Fp8() as weight, Plain(_)]:
            return has_block_product(weight, dtype)
    return False


def coded_product(codes: Fp8Rows, x: Tensor | None, matrix: Matrix) -> Tensor:
    """Return the product with the matrix [out, in] transposed, [T, out] bf16. The library
    multiplies its FP8 rows by codes, and its plain rows below by x. codes: x [T, in] quantised with
    a scale for each 128 columns. x None: only for a matrix without plain rows. REQUIRES:
    has_coded_product(matrix)."""
    match matrix.segments:
        case [Fp8() as weight]:
            return block_product(codes, weight)
        case [Fp8() as weight, Plain(tail)] if x is not None:
            # Both products go side by side: a copy of them would take as long as a norm.
            output = x.new_empty(len(codes.values), matrix.shape[0])
            _scaled_into(codes, weight, output[:, : weight.shape[0]])
            output = output[: codes.count]
            torch.mm(x, tail.t(), out=output[:, weight.shape[0] :])
            return output
    raise AssertionError("the matrix has plain rows and no x, or no product by the library")


def has_shared_product(weight: Fp8, dtype: torch.dtype, shares: int) -> bool:
    """Return true if the library can multiply each of the shares of this weight's columns, as
    has_block_product() says of a whole weight."""
    return has_block_product(weight, dtype) and weight.shape[1] % (4 * GROUP * shares) == 0


def shared_product(x: Fp8Rows, weight: Fp8, shares: int, output: Tensor) -> None:
    """Multiply quantised rows x by the weight transposed, each share of the columns alone, and add
    up the shares in order. Write the result into output [T, out], any row stride. REQUIRES:
    has_shared_product(weight); two shares or more."""
    columns = weight.shape[1] // shares
    parts = []
    for share in range(shares):
        inside = slice(share * columns, (share + 1) * columns)
        grid = slice(inside.start // GROUP, inside.stop // GROUP)
        found: Tensor = torch._scaled_mm(
            x.values[:, inside],
            weight.values[:, inside].t(),
            scale_a=x.scales[:, grid],
            scale_b=weight.scales[:, grid].contiguous().t(),
            out_dtype=torch.float32,
        )
        parts.append(found[: x.count])
    total = parts[0]
    for part in parts[1:-1]:
        total = total.add_(part)
    torch.add(total, parts[-1], out=output)


def library_product(x: Tensor, weight: Fp8) -> Tensor | None:
    """Quantise x [T, in] and multiply it by the weight with the library. Return None if the library
    does not support the matrix."""
    if has_block_product(weight, x.dtype):
        return _scaled(quantised(x), weight)
    if has_row_product(weight, x.dtype):
        return _scaled(quantised_whole(x), weight)
    return None


def _scaled(x: Fp8Rows, weight: Fp8) -> Tensor:
    result: Tensor = torch._scaled_mm(
        x.values,
        weight.values.t(),
        scale_a=x.scales,
        scale_b=weight.scales.t(),
        out_dtype=torch.bfloat16,
    )
    return result[: x.count]


def _scaled_into(x: Fp8Rows, weight: Fp8, output: Tensor) -> None:
    """Write the library's product into output [padded T, out], any row stride."""
    torch._scaled_mm(
        x.values,
        weight.values.t(),
        scale_a=x.scales,
        scale_b=weight.scales.t(),
        out_dtype=output.dtype,
        out=output,
    )


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    if device.type != "cuda":
        return (0, 0)
    return torch.cuda.get_device_capability(device)
