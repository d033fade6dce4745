"""Cases of elementwise work between matrix products: norms, rotary embedding, gates. Each kernel is
compared with its compiled reference implementation."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.config import DeltaNetConfig
from tasuki.model.ops.attention.qk_norm_rope_gate import TokenPlaces, qk_norm_rope_gate
from tasuki.model.ops.attention.rope import apply_rotary, rotary_cache
from tasuki.model.ops.linear.swiglu import swiglu
from tasuki.model.ops.norm import reference as norm
from tasuki.model.ops.norm.rms_norm import add_rms_norm, rms_norm
from tasuki.model.weights.layers import AttentionWeights
from tasuki.model.weights.matrix import Matrix
from tasuki.pycache.layout import PAGE_TOKENS

from .case import Case, Stage, Turn, beside_twin

_TOKENS = (4096, 16384)
_EPS = 1e-6
_WIDTH = 12288


def cases(stage: Stage) -> Iterator[Case]:
    for tokens in _TOKENS:
        yield _norm(stage, tokens)
        yield _add_norm(stage, tokens)
        yield _swiglu(stage, tokens)
        yield _rope(stage, tokens)


def _norm(stage: Stage, tokens: int) -> Case:
    hidden = stage.model.hidden
    weight = torch.rand(hidden, device=stage.device)

    def turn() -> Turn:
        x = stage.random(tokens, hidden)
        return partial(rms_norm, x, weight, _EPS), (x, weight)

    name = f"rms norm, {tokens} tokens of {hidden}"
    return beside_twin(name, turn, partial(norm.rms_norm, eps=_EPS), 4 * tokens * hidden)


def _add_norm(stage: Stage, tokens: int) -> Case:
    hidden = stage.model.hidden
    weight = torch.rand(hidden, device=stage.device)

    def turn() -> Turn:
        branch, residual = stage.random(tokens, hidden), stage.random(tokens, hidden)
        work = partial(add_rms_norm, branch, residual, weight, _EPS)
        return work, (branch, residual, weight)

    name = f"add and rms norm, {tokens} tokens of {hidden}"
    return beside_twin(name, turn, _naive_add, 8 * tokens * hidden)


def _naive_add(branch: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = branch + residual
    return norm.rms_norm(total, weight, _EPS), total


def _swiglu(stage: Stage, tokens: int) -> Case:
    def turn() -> Turn:
        gate_up = stage.random(tokens, 2 * _WIDTH)
        return partial(swiglu, gate_up), (gate_up,)

    name = f"swiglu, {tokens} tokens of {_WIDTH}"
    return beside_twin(name, turn, _naive_swiglu, 6 * tokens * _WIDTH)


def _naive_swiglu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def _rope(stage: Stage, tokens: int) -> Case:
    config, layers = stage.model, stage.arena.views("kv")
    q_width, kv_width = config.query_heads * config.head_dim, config.kv_heads * config.head_dim
    rotary = rotary_cache(config, tokens, stage.device)
    ones = torch.ones(config.head_dim, device=stage.device)
    none = Matrix.of(ones)
    weights = AttentionWeights(in_proj=none, q_norm=ones, k_norm=ones, out_proj=none)
    positions = torch.arange(tokens, device=stage.device, dtype=torch.int32)
    pages = stage.page_ids(tokens // PAGE_TOKENS)
    places = TokenPlaces(positions, torch.zeros_like(positions), pages[None], stage.rows(tokens))
    pending = iter(range(tokens))

    def turn() -> Turn:
        projected = stage.random(tokens, 2 * q_width + 2 * kv_width)
        kv = layers[next(pending) % len(layers)]
        work = partial(qk_norm_rope_gate, projected, weights, config, rotary, places, kv)
        return work, (projected, ones, rotary)

    return beside_twin(
        f"q and k norm, rotary, pages, {tokens} tokens",
        turn,
        partial(_naive_rope, config),
        4 * tokens * (q_width + 2 * kv_width),
    )


def _naive_rope(
    config: DeltaNetConfig,
    projected: Tensor,
    weight: Tensor,
    rotary: Tensor,
) -> tuple[Tensor, Tensor]:
    tokens, dim = projected.shape[0], config.head_dim
    q_width, kv_width = config.query_heads * dim, config.kv_heads * dim
    gated, k, v = projected.split_with_sizes([2 * q_width, kv_width, kv_width], dim=-1)
    q = gated.view(tokens, config.query_heads, 2 * dim).chunk(2, dim=-1)[0]
    cos, sin = rotary[:, :1], rotary[:, 1:]
    q = apply_rotary(norm.rms_norm(q, weight, _EPS), cos, sin)
    k = norm.rms_norm(k.view(tokens, config.kv_heads, dim), weight, _EPS)
    # Into memory in one piece: a compiler copies a whole arena to write into a view of it.
    return q, torch.stack([apply_rotary(k, cos, sin), v.view(tokens, config.kv_heads, dim)])
