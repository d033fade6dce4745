"""A mixture-of-experts block on the GPU. The number of tokens decides the kernels.

Shapes: x [T, hidden] -> [T, hidden]; weights of `MoeWeights`, row-major. Reference:
`TorchOperators.feed_forward`.

Few tokens go to gemv.py. More are sorted by expert and go through torch's grouped matrix products;
these are bf16 only, so other dtypes take gemv.py at every size. FP8 and NVFP4 experts have grouped
products of their own (fp8_grouped.py, nvfp4_grouped.py). FP8 quantises rows by the activations of
their phase, of few tokens too. The choice depends on shapes and activations only, so a captured
graph holds one choice. The host never waits. Tokens past rows[0] get no expert and
undefined results. If this rank has a part of the experts, the result is the sum of this part and of
its part of the shared expert.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.config import DeltaNetConfig, MoeShape
from tasuki.model.forward import Activations
from tasuki.model.ops.linear.fp8_activations import quantised, quantised_swiglu
from tasuki.model.ops.linear.phase_product import phase_product, phase_swiglu
from tasuki.model.ops.linear.swiglu import swiglu
from tasuki.model.weights.kernel_layout import NvFp4Halves
from tasuki.model.weights.layers import MlpWeights, MoeWeights
from tasuki.model.weights.matrix import Matrix
from tasuki.model.weights.quantised_segments import Fp8

from .expert_tiles import Tile
from .fp8_grouped import MANY, grouped_fp8
from .gemv import moe_gemv
from .nvfp4_grouped import grouped_nvfp4
from .permute import permute, unpermute
from .permute_index import Permutation, permute_index
from .router import choose
from .shared_gate import fused_gate_sigmoid_mul_add

# The two paths are equally fast here, on an H200 with the shapes of 35B-A3B (docs/kernels.md).
MOST_GEMV_TOKENS = 64
MOST_FP8_GEMV_TOKENS = 32
"""Largest number of tokens for gemv.py with FP8 experts. On an H100, gemv.py is 1.17 times as fast
as grouped products at 16 tokens, and grouped products are 1.24 times as fast at 64."""
MOST_NVFP4_GEMV_TOKENS = 16
"""Largest number of tokens for gemv.py with NVFP4 experts. On an H100, gemv.py at 32 tokens takes
as long as grouped products at 64."""


def moe(
    x: Tensor,
    weights: MoeWeights,
    config: DeltaNetConfig,
    rows: Tensor,
    side: torch.cuda.Stream | None = None,
    activations: Activations = Activations.MODEL,
) -> Tensor:
    """Return the sum of the routed experts and the shared expert for x, [T, hidden]. x: any row
    stride; rows [1] int32: number of valid tokens. activations: those of the tokens' phase.

    side: a second stream. It runs the shared expert of a large batch, between a fork from the
    current stream and a join to it. A graph under capture records both.
    """
    shape = config.feed_forward
    assert isinstance(shape, MoeShape)
    few = x.shape[0] <= _most_gemv_tokens(weights)
    few = few and (activations is Activations.MODEL or not _has_fp8(weights))
    is_exact = x.dtype is not torch.bfloat16 and activations is not Activations.ROWS
    if is_exact or few:
        return moe_gemv(x, weights, shape.chosen, rows, shape.held)
    if side is None:
        shared = _mlp(x, weights.shared, activations)
        routed = _routed(x, weights, shape, rows, activations)
    else:
        current = torch.cuda.current_stream(x.device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            shared = _mlp(x, weights.shared, activations)
        routed = _routed(x, weights, shape, rows, activations)
        # Only `side` reuses the memory of `shared`, and it waits for this stream first.
        current.wait_stream(side)
    return fused_gate_sigmoid_mul_add(x, weights.shared_gate, shared, routed, rows)


def _most_gemv_tokens(weights: MoeWeights) -> int:
    match weights.gate_up.segments[0]:
        case Fp8():
            return MOST_FP8_GEMV_TOKENS
        case NvFp4Halves():
            return MOST_NVFP4_GEMV_TOKENS
    return MOST_GEMV_TOKENS


def _has_fp8(weights: MoeWeights) -> bool:
    """Return true if any of the weights are FP8."""
    shared = weights.shared
    matrices = (weights.gate_up, weights.down, shared.gate_up, shared.down)
    return any(isinstance(matrix.only, Fp8) for matrix in matrices)


def _mlp(x: Tensor, weights: MlpWeights, activations: Activations) -> Tensor:
    return phase_swiglu(phase_product(x, weights.gate_up, activations), weights.down, activations)


def _routed(
    x: Tensor, weights: MoeWeights, shape: MoeShape, rows: Tensor, activations: Activations
) -> Tensor:
    logits = functional.linear(x, weights.router)
    choice = choose(logits, shape.chosen, rows, shape.held)
    # Pairs of experts on other ranks come last, as the pairs of one more expert.
    count = len(shape.own)
    permutation = permute_index(choice.experts, count + (shape.held is not None), rows)
    permutation = replace(permutation, ends=permutation.ends[:count])
    both = _gate_up(x, weights.gate_up, permutation, rows, activations)
    pairs = _down(both, weights.down, permutation.ends, activations)
    return unpermute(pairs, permutation.positions, choice.weights, rows)


def _gate_up(
    x: Tensor, matrices: Matrix, permutation: Permutation, rows: Tensor, activations: Activations
) -> Tensor:
    """Multiply each (token, expert) pair by its expert's gate_up matrix. Return [T * chosen, 2 *
    inner], sorted by expert."""
    positions, ends = permutation.positions, permutation.ends
    weight = matrices.only
    if isinstance(weight, NvFp4Halves):
        return grouped_nvfp4(permute(x, positions, rows), weight, ends)
    if not isinstance(weight, Fp8):
        return _grouped(permute(x, positions, rows), matrices.plain, ends)
    if activations is Activations.MODEL:
        return grouped_fp8(permute(x, positions, rows), None, weight, ends)
    # Quantise once a token, not once a pair: codes and scales are then permuted.
    codes = quantised(x)
    values = permute(codes.values.view(torch.uint8)[: codes.count], positions, rows)
    scales = permute(codes.scales[: codes.count].contiguous(), positions, rows)
    values = values.view(torch.float8_e4m3fn)
    return grouped_fp8(values, scales, weight, ends, _tile_of(activations))


def _down(both: Tensor, matrices: Matrix, ends: Tensor, activations: Activations) -> Tensor:
    """Compute silu(gate) * up for each (token, expert) pair, and return its products with the
    experts' down matrices."""
    weight = matrices.only
    if isinstance(weight, NvFp4Halves):
        return grouped_nvfp4(swiglu(both), weight, ends)
    if not isinstance(weight, Fp8):
        return _grouped(swiglu(both), matrices.plain, ends)
    if activations is Activations.MODEL:
        return grouped_fp8(swiglu(both), None, weight, ends)
    codes = quantised_swiglu(both)
    scales = codes.scales[: codes.count].contiguous()
    values = codes.values[: codes.count]
    return grouped_fp8(values, scales, weight, ends, _tile_of(activations))


def _tile_of(activations: Activations) -> Tile | None:
    """Return the one tile of FP8 rows, for equal bits at any number of pairs; None: any tile."""
    return MANY if activations is Activations.ROWS else None


def _grouped(pairs: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Return the products of rows, sorted by expert, with their expert's matrix [experts, out, in].
    ends: see `Permutation`."""
    # The public name of this, torch.nn.functional.grouped_mm, came after torch 2.11.
    grouped: Tensor = torch._grouped_mm(pairs, matrices.transpose(-1, -2), offs=ends)
    return grouped
