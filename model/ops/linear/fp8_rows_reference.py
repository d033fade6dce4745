"""Products of FP8 rows (e4m3 codes and scales) with FP8 weights in PyTorch, to the bit as Hopper's
instruction computes them.

The order of sums depends on the weight's shape alone:

    sum of a block    128 columns, four instructions of 32 in one accumulator
    sum of a share    result = fma(sum of a block, row scale * weight scale, result), block by block
    product           the shares' sums, added in order

An instruction aligns 32 products and the accumulator to the largest exponent among them. It cuts
each toward zero at 2^-13 of this exponent, and adds them exactly. It cuts their sum toward zero to
13 bits of fraction. A product's exponent is the sum of its factors' exponents; of zeros it counts
for nothing. The fused multiply-add is computed in float64, where a second rounding changes fewer
than one in 2^28 sums.
"""

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.weights.matrix import Matrix
from tasuki.model.weights.quantised_segments import Fp8, e4m3_values

from .reference import Products, product

BLOCK = 128
"""Number of columns with a common scale of a row, multiplied as one chain of instructions."""
_INSTRUCTION = 32
"""Number of columns of one instruction."""
_FRACTION = 13
"""Number of fraction bits kept by the instruction's adder."""
_OF_ZERO = -30
"""The exponent of zero. Products of other numbers have -12 and more, and a zero's -22 and less."""
_TILE_ROWS = 64
_PROGRAMS = 128
"""Least number of programs: about one for each multiprocessor."""
_LEAST_BLOCKS = 8
"""Least number of 128-column blocks in a share."""
_CHUNK = 1 << 20
"""Number of single products held at a time."""


def shares_of(rows: int, columns: int) -> int:
    """Return the number of shares of the columns in products with weights [rows, columns], a power
    of two. A narrow output has few tiles, so its columns are shared out among programs. More shares
    are faster at few rows, and slower for prompts."""
    tiles, shares = -(-rows // _TILE_ROWS), 1
    while tiles * shares < _PROGRAMS and columns >= 2 * shares * _LEAST_BLOCKS * BLOCK:
        shares *= 2
    return shares


def coded(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise x [T, columns] to e4m3 with a scale for each 128 columns of a row. Return codes [T,
    columns] and scales [T, groups] float32."""
    rows, columns = x.shape
    padded = functional.pad(x.float(), (0, -columns % BLOCK)).view(rows, -1, BLOCK)
    scales = padded.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448
    codes = (padded * scales.reciprocal()).to(torch.float8_e4m3fn)
    return codes.view(rows, -1)[:, :columns], scales[..., 0]


class CodedProducts(Products):
    """Products of activations as FP8 rows with FP8 weights, of others with other weights."""

    def product(self, x: Tensor, matrix: Matrix) -> Tensor:
        fp8 = [segment for segment in matrix.segments if isinstance(segment, Fp8)]
        if not fp8:
            return product(x, matrix)
        shares = shares_of(sum(segment.shape[0] for segment in fp8), matrix.shape[1])
        rows = coded(x)
        parts = [
            rows_product(*rows, segment, shares).to(x.dtype)
            if isinstance(segment, Fp8)
            else product(x, Matrix((segment,)))
            for segment in matrix.segments
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def swiglu(self, x: Tensor, gate_up: Matrix, down: Matrix) -> Tensor:
        """Compute the feed-forward as Products.swiglu() does. The activation is not rounded before
        it is quantised."""
        gate, up = self.product(x, gate_up).float().chunk(2, dim=-1)
        return self.product(functional.silu(gate).mul_(up), down).to(x.dtype)


def rows_product(codes: Tensor, scales: Tensor, weight: Fp8, shares: int) -> Tensor:
    """Return FP8 rows times the weight transposed, [T, out] float32. codes [T, columns] e4m3;
    scales [T, groups] float32; shares: see shares_of()."""
    grid = scales.shape[1]
    share = -(-grid // shares)
    factors = _factors(weight, grid)
    total = scales.new_zeros(len(codes), weight.shape[0])
    for begin in range(0, grid, share):
        result = torch.zeros_like(total)
        for block in range(begin, min(begin + share, grid)):
            columns = slice(block * BLOCK, (block + 1) * BLOCK)
            found = block_sums(codes[:, columns], weight.values[:, columns])
            factor = scales[:, block, None] * factors[None, :, block]
            result = (found.double() * factor.double()).add_(result).float()
        total = total + result
    if weight.scales.shape[-1] == 1:
        total = total * _of_rows(weight)[None, :, 0]
    return total


def block_sums(codes: Tensor, weights: Tensor) -> Tensor:
    """Return the instruction's sums of codes [T, n] times weights [out, n] transposed, both e4m3:
    [T, out] float32. n: at most 128."""
    fill = (0, -codes.shape[1] % _INSTRUCTION)
    a, b = (functional.pad(e4m3_values(each), fill) for each in (codes, weights))
    high_a, high_b = _exponents(a), _exponents(b)
    result = a.new_zeros(len(a), len(b))
    rows = max(1, _CHUNK // (_INSTRUCTION * len(b)))
    for first in range(0, len(a), rows):
        part = slice(first, first + rows)
        for begin in range(0, a.shape[1], _INSTRUCTION):
            columns = slice(begin, begin + _INSTRUCTION)
            products = a[part, None, columns] * b[None, :, columns]
            highest = (high_a[part, None, columns] + high_b[None, :, columns]).amax(-1)
            result[part] = _added(products, highest, result[part])
    return result


def _added(products: Tensor, highest: Tensor, before: Tensor) -> Tensor:
    """Add products [T, out, 32] to the accumulator `before` [T, out] as one instruction does.
    highest [T, out] int32: largest exponent of the products."""
    highest = torch.maximum(highest, _floor_log2(before))
    up = _power(_FRACTION - highest)
    total = products.mul_(up[..., None]).trunc_().sum(-1).add_((before * up).trunc_())
    # A float32 number has 23 bits of fraction, and the adder keeps the first ones.
    kept = total.view(torch.int32).bitwise_and_(-1 << (23 - _FRACTION)).view(torch.float32)
    return kept * _power(highest - _FRACTION)


def _exponents(values: Tensor) -> Tensor:
    """Return the exponents of e4m3 numbers, int32. The smallest numbers (subnormal) have the least
    exponent, -6. A zero's is so low that its products lie below all others."""
    return _floor_log2(values).clamp_(min=-6).masked_fill_(values == 0, _OF_ZERO)


def _floor_log2(values: Tensor) -> Tensor:
    """Return the exponents of float32 numbers, int32; -127 for 0."""
    return (values.view(torch.int32) >> 23).bitwise_and_(255).sub_(127)


def _power(exponents: Tensor) -> Tensor:
    """Return 2 ** exponents, float32."""
    return ((exponents + 127) << 23).view(torch.float32)


def _factors(weight: Fp8, grid: int) -> Tensor:
    """Return the weight's scales by row and block, [out, grid] float32; 1 if a scale covers a whole
    row, and is applied to the sum."""
    if weight.scales.shape[-1] == 1:
        return weight.scales.new_ones(1, 1).expand(weight.shape[0], grid)
    return _of_rows(weight)


def _of_rows(weight: Fp8) -> Tensor:
    repeated = weight.scales.repeat_interleave(weight.block_rows, 0)
    return repeated[: weight.shape[0]]
