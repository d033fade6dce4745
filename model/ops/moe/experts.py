"""A mixture-of-experts block on the GPU, by the number of tokens.

Shapes: x [T, hidden] -> [T, hidden]; weights of `MoeWeights`, row-major. Twin:
`TorchOperators.feed_forward`. Few tokens go to gemv.py; more are sorted by expert and go
through torch's grouped matrix products, which are bf16 only, so that other dtypes take gemv.py
at every size. The choice depends on shapes alone, so that a captured graph holds one of the two. No
host sync. Tokens past rows[0] get no expert and undefined results.
"""

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.config import ModelConfig, MoeShape
from tasuki.model.ops.linear.swiglu import swiglu
from tasuki.model.weights.layers import MlpWeights, MoeWeights

from .gemv import moe_gemv
from .permute import permute, unpermute
from .permute_index import permute_index
from .router import choose
from .shared_gate import fused_gate_sigmoid_mul_add

# Where the two paths cross on an H200 with the shapes of 35B-A3B (docs/kernels.md).
MOST_GEMV_TOKENS = 64


def moe(
    x: Tensor,
    weights: MoeWeights,
    config: ModelConfig,
    rows: Tensor,
    side: torch.cuda.Stream | None = None,
) -> Tensor:
    """Routed and shared experts of x [T, hidden], row-strided; rows [1] int32.

    With `side`, the shared expert of a large batch runs on that stream, between a fork from the
    current stream and a join to it; a graph that is being captured records both.
    """
    assert isinstance(config.feed_forward, MoeShape)
    chosen = config.feed_forward.chosen
    if x.dtype is not torch.bfloat16 or x.shape[0] <= MOST_GEMV_TOKENS:
        return moe_gemv(x, weights, chosen, rows)
    if side is None:
        shared = _mlp(x, weights.shared)
        routed = _routed(x, weights, chosen, rows)
    else:
        current = torch.cuda.current_stream(x.device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            shared = _mlp(x, weights.shared)
        routed = _routed(x, weights, chosen, rows)
        # Memory of `shared` is reused by `side` alone, which waits for this stream first.
        current.wait_stream(side)
    return fused_gate_sigmoid_mul_add(x, weights.shared_gate, shared, routed, rows)


def _mlp(x: Tensor, weights: MlpWeights) -> Tensor:
    return functional.linear(
        swiglu(functional.linear(x, weights.gate_up.plain)), weights.down.plain
    )


def _routed(x: Tensor, weights: MoeWeights, chosen: int, rows: Tensor) -> Tensor:
    choice = choose(functional.linear(x, weights.router), chosen, rows)
    permutation = permute_index(choice.experts, weights.router.shape[0], rows)
    pairs = permute(x, permutation.positions, rows)
    acts = swiglu(_grouped(pairs, weights.gate_up.plain, permutation.ends))
    pairs = _grouped(acts, weights.down.plain, permutation.ends)
    return unpermute(pairs, permutation.positions, choice.weights, rows)


def _grouped(pairs: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Rows of pairs times their expert's matrix [experts, out, in]; ends as `Permutation.ends`."""
    # The public name of this, torch.nn.functional.grouped_mm, came after torch 2.11.
    grouped: Tensor = torch._grouped_mm(pairs, matrices.transpose(-1, -2), offs=ends)
    return grouped
