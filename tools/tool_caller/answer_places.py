"""The tool caller's last states at the answers' places only, as its third stage learns from them.

The last layer is the only one whose cost grows with the square of the prompt; at tens of answers'
tokens instead of tens of thousands it is next to nothing. The layers below are as they are: no
gradient passes.
"""

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from transformers.models.qwen3_5.modeling_qwen3_5 import apply_rotary_pos_emb


def answer_states(model: nn.Module, tokens: Tensor, answers: Tensor) -> Tensor:
    """States [N, D] for the tokens after the first of [B, T] that `answers` [B, T - 1] chooses, row
    by row. model: a Qwen3_5TextModel whose last layer alone is an attention layer."""
    last = model.layers[-1]
    with torch.no_grad():
        positions = torch.arange(tokens.shape[1]).view(1, 1, -1).expand(3, 1, -1)
        hidden = model.embed_tokens(tokens)
        turned = model.rotary_emb(hidden, positions)
        for layer in model.layers[:-1]:
            hidden = layer(hidden, position_embeddings=turned, use_cache=False)
    rows = [
        _layer_at(last, states, turned, chosen.nonzero().squeeze(-1))
        for states, chosen in zip(hidden, answers, strict=True)
    ]
    out: Tensor = model.norm(torch.cat(rows))
    return out


def _layer_at(
    layer: nn.Module, states: Tensor, turned: tuple[Tensor, Tensor], places: Tensor
) -> Tensor:
    """The layer's output [N, D] at `places` [N] of a sequence's states [T, D]."""
    attention = layer.self_attn
    size = attention.head_dim
    normed = layer.input_layernorm(states)
    query, gate = attention.q_proj(normed[places]).view(len(places), -1, 2 * size).chunk(2, -1)
    query = attention.q_norm(query).transpose(0, 1)
    key = attention.k_norm(attention.k_proj(normed).view(len(states), -1, size)).transpose(0, 1)
    value = attention.v_proj(normed).view(len(states), -1, size).transpose(0, 1)
    cos, sin = (part[0] for part in turned)
    query, _ = apply_rotary_pos_emb(query, query, cos[places], sin[places], unsqueeze_dim=0)
    key, _ = apply_rotary_pos_emb(key, key, cos, sin, unsqueeze_dim=0)
    seen = torch.arange(len(states)) <= places.unsqueeze(-1)
    found = functional.scaled_dot_product_attention(
        query, key.expand(len(query), -1, -1), value.expand(len(query), -1, -1), attn_mask=seen
    )
    mixed = found.transpose(0, 1).flatten(1) * gate.flatten(1).sigmoid()
    after = states[places] + attention.o_proj(mixed)
    out: Tensor = after + layer.mlp(layer.post_attention_layernorm(after))
    return out
