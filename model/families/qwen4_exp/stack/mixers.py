"""The mixers and the experts of a layer in PyTorch, on one rank's heads and widths."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.backends.torch_backend import mix_states
from tasuki.model.config import MoeShape
from tasuki.model.families.qwen4_exp.config import OutputGate, Qwen4ExpConfig
from tasuki.model.families.qwen4_exp.sparse.attention import sparse_attention
from tasuki.model.families.qwen4_exp.sparse.plan import IndexPlan
from tasuki.model.families.qwen4_exp.stack.plan import BoundForward
from tasuki.model.families.qwen4_exp.states import StatePlan
from tasuki.model.families.qwen4_exp.weights import SparseWeights
from tasuki.model.ops.attention.page_rows import write_rows
from tasuki.model.ops.attention.rope import apply_rotary
from tasuki.model.ops.linear.reference import product
from tasuki.model.ops.moe.reference import gated_shared, mixture, route
from tasuki.model.ops.norm.reference import rms_norm
from tasuki.model.ops.row_room import RowRoom
from tasuki.model.weights.layers import AttentionWeights, GdnWeights, MoeWeights


def recurrent_mixer(
    projected: Tensor,
    weights: GdnWeights,
    views: Mapping[str, Tensor],
    config: Qwen4ExpConfig,
    plan: StatePlan,
) -> Tensor:
    """Run a Gated DeltaNet mixer, and store the planned states. Return [T, value_heads *
    value_dim], the input of out_proj. projected [T, q | k | v | z | b | a]."""
    output, gate = mix_states(
        projected, weights, views["conv"], views["ssm"], config, plan.conv, plan.gdn
    )
    return _gated_norm(output, gate, weights.norm, config).flatten(1)


def _gated_norm(x: Tensor, gate: Tensor, weight: Tensor, config: Qwen4ExpConfig) -> Tensor:
    normed = functional.rms_norm(x, weight.shape, weight, config.norm_eps)
    opened = gate.float()
    if config.output_gate is OutputGate.SIGMOID:
        opened = opened.sigmoid()
    else:
        opened = functional.silu(opened)
    return (normed * opened).to(gate.dtype)


@dataclass(frozen=True)
class SparseInputs:
    """Projections of a sparse layer's input. attention [T, query_heads x (q, gate) | k | v].
    index_queries [T, index heads, dim], index_keys [T, dim]: raw, without norm and rotary."""

    attention: Tensor
    index_queries: Tensor
    index_keys: Tensor

    @staticmethod
    def of(x: Tensor, weights: SparseWeights, config: Qwen4ExpConfig) -> "SparseInputs":
        """Project a layer's input x [T, hidden]."""
        shape = config.index
        index = functional.linear(x, weights.index.query_key)
        queries, keys = index.split_with_sizes(
            [config.index.heads * config.index.dim, config.index.dim], -1
        )
        return SparseInputs(
            attention=product(x, weights.attention.in_proj),
            index_queries=queries.reshape(len(x), -1, shape.dim),
            index_keys=keys,
        )


def sparse_mixer(
    inputs: SparseInputs,
    extended: Tensor,
    weights: SparseWeights,
    views: Mapping[str, Tensor],
    config: Qwen4ExpConfig,
    bound: BoundForward,
    plan: IndexPlan,
    room: RowRoom,
) -> Tensor:
    """Write keys, values and index rows, then attend. Return the gated output [T, query_heads *
    head_dim], the input of out_proj. extended: raw index keys with each sequence's window before
    them. plan: of the layer's entries."""
    attention = weights.attention
    heads, dim, eps = config.query_heads, config.head_dim, config.norm_eps
    width = config.kv_heads * dim
    gated, k, v = inputs.attention.split_with_sizes([2 * heads * dim, width, width], dim=-1)
    q, gate = gated.reshape(-1, heads, 2 * dim).chunk(2, dim=-1)
    write_entries(k, v, attention, views["kv"], config, bound)
    plan.write(extended, weights.index.k_norm, eps, views["index"])
    index_q = rms_norm(inputs.index_queries, weights.index.q_norm, eps)
    output = sparse_attention(
        apply_rotary(rms_norm(q, attention.q_norm, eps), bound.cos, bound.sin),
        apply_rotary(index_q, bound.cos, bound.sin),
        views["kv"],
        views["index"],
        plan,
        room,
    )
    opened: Tensor = output * gate.sigmoid()
    return opened.flatten(1)


def write_entries(
    k: Tensor,
    v: Tensor,
    weights: AttentionWeights,
    kv: Tensor,
    config: Qwen4ExpConfig,
    bound: BoundForward,
) -> None:
    """Norm and rotate keys k, and write them with values v into pages. Both are [T, kv_heads *
    head_dim], as projected."""
    k, v = (x.reshape(-1, config.kv_heads, config.head_dim) for x in (k, v))
    k = apply_rotary(rms_norm(k, weights.k_norm, config.norm_eps), bound.cos, bound.sin)
    write_rows(k, v, kv, bound.places)


def experts(x: Tensor, weights: MoeWeights, config: Qwen4ExpConfig) -> Tensor:
    """Return this rank's part of the experts' output for x, [T, hidden]."""
    shape = config.feed_forward
    assert isinstance(shape, MoeShape)
    shares, chosen = route(x, weights.router, shape.chosen)
    routed = mixture(x, weights.gate_up, weights.down, shares, chosen, shape.own.start)
    shared = weights.shared
    return routed + gated_shared(x, shared.gate_up, shared.down, weights.shared_gate)


def joined(*parts: Tensor) -> Tensor:
    """Return the parts side by side, [T, sum of widths]."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
