"""The three blocks of a layer: GDN mixer, attention mixer, feed-forward.

Functions of hidden states, weights, the layer's views of the arena and the forward's plan; they
hold nothing and know neither requests nor which layer they are.
"""

from torch import Tensor
from torch.nn import functional

from .config import ModelConfig, MoeShape
from .ops.attention import paged_attention
from .ops.conv import causal_conv
from .ops.gdn import gated_delta_rule
from .ops.mlp import swiglu
from .ops.moe import gated_shared, mixture, route
from .ops.norm import gated_rms_norm, l2_norm, rms_norm
from .ops.rope import apply_rotary
from .plan import ForwardPlan
from .weights import AttentionWeights, GdnWeights, MlpWeights, MoeWeights


def gdn_mixer(
    x: Tensor,
    weights: GdnWeights,
    config: ModelConfig,
    conv: Tensor,
    ssm: Tensor,
    plan: ForwardPlan,
) -> Tensor:
    """x and result [T, hidden]; conv [slots, channels, columns]; ssm [slots, value_heads,
    value_dim, key_dim]; both are read and written by slot."""
    tokens, heads = x.shape[0], config.value_heads
    keys, values = config.key_heads * config.key_dim, heads * config.value_dim
    mixed, z, b, a = functional.linear(x, weights.in_proj).split_with_sizes(
        [config.conv_channels, values, heads, heads], dim=-1
    )
    mixed = causal_conv(mixed, weights.conv, conv, plan.conv).float()
    qk = l2_norm(mixed[:, : 2 * keys].view(tokens, 2, config.key_heads, config.key_dim))
    # Value head j belongs to key head j // ratio: repeats are neighbours.
    ratio = heads // config.key_heads
    q, k = qk.unsqueeze(3).expand(-1, -1, -1, ratio, -1).flatten(2, 3).unbind(1)
    output = gated_delta_rule(
        q * config.key_dim**-0.5,
        k,
        mixed[:, 2 * keys :].view(tokens, heads, config.value_dim),
        weights.decay_rate * functional.softplus(a.float() + weights.dt_bias),
        b.float().sigmoid(),
        ssm,
        plan.gdn,
    )
    gate = z.view(tokens, heads, config.value_dim)
    normed = gated_rms_norm(output, gate, weights.norm, config.norm_eps)
    return functional.linear(normed.flatten(1), weights.out_proj)


def attention_mixer(
    x: Tensor, weights: AttentionWeights, config: ModelConfig, kv: Tensor, plan: ForwardPlan
) -> Tensor:
    """x and result [T, hidden]; kv [pages, 2, page_tokens, kv_heads, head_dim], read and
    written."""
    tokens, heads, dim = x.shape[0], config.query_heads, config.head_dim
    width = config.kv_heads * dim
    gated, k, v = functional.linear(x, weights.in_proj).split_with_sizes(
        [2 * heads * dim, width, width], dim=-1
    )
    q, gate = gated.view(tokens, heads, 2 * dim).chunk(2, dim=-1)
    q = rms_norm(q, weights.q_norm, config.norm_eps)
    k = rms_norm(k.view(tokens, config.kv_heads, dim), weights.k_norm, config.norm_eps)
    output = paged_attention(
        apply_rotary(q, plan.cos, plan.sin),
        apply_rotary(k, plan.cos, plan.sin),
        v.view(tokens, config.kv_heads, dim),
        kv,
        plan.attention,
    )
    return functional.linear((output * gate.sigmoid()).flatten(1), weights.out_proj)


def feed_forward(x: Tensor, weights: MlpWeights | MoeWeights, config: ModelConfig) -> Tensor:
    """x and result [T, hidden]."""
    if isinstance(weights, MlpWeights):
        return swiglu(x, weights.gate_up, weights.down)
    assert isinstance(config.feed_forward, MoeShape)
    chosen, experts = route(x, weights.router, config.feed_forward.chosen)
    routed = mixture(x, weights.gate_up, weights.down, chosen, experts)
    shared = weights.shared
    return routed + gated_shared(x, shared.gate_up, shared.down, weights.shared_gate)
