"""What stands between matrix products: norms, rotary, gates. Each beside its compiled twin."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from ...model.kernels.qk_norm_rope_gate import TokenPlaces, qk_norm_rope_gate, rotary_cache
from ...model.kernels.rms_norm import add_rms_norm, rms_norm
from ...model.kernels.swiglu import swiglu
from ...model.ops import norm
from ...model.ops.rope import apply_rotary
from ...model.weights import AttentionWeights
from ...pycache.layout import PAGE_TOKENS
from .beside_twin import beside_twin
from .case import Case
from .stage import Stage

_TOKENS = (4096, 16384)


def cases(stage: Stage) -> Iterator[Case]:
    for tokens in _TOKENS:
        yield _norm(stage, tokens)
        yield _add_norm(stage, tokens)
        yield _swiglu(stage, tokens)
        yield _rope(stage, tokens)


def _norm(stage: Stage, tokens: int) -> Case:
    hidden, eps = stage.model.hidden, stage.model.norm_eps
    weight = torch.rand(hidden, device=stage.device)

    def turn() -> "partial[Tensor]":
        return partial(rms_norm, stage.random(tokens, hidden), weight, eps)

    return beside_twin(
        f"rms norm, {tokens} tokens of {hidden}", turn, norm.rms_norm, 4 * tokens * hidden
    )


def _add_norm(stage: Stage, tokens: int) -> Case:
    hidden, eps = stage.model.hidden, stage.model.norm_eps
    weight = torch.rand(hidden, device=stage.device)

    def turn() -> "partial[tuple[Tensor, Tensor]]":
        branch, residual = stage.random(tokens, hidden), stage.random(tokens, hidden)
        return partial(add_rms_norm, branch, residual, weight, eps)

    return beside_twin(
        f"add and rms norm, {tokens} tokens of {hidden}", turn, _naive_add, 8 * tokens * hidden
    )


def _naive_add(
    branch: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    total = branch + residual
    return norm.rms_norm(total, weight, eps), total


def _swiglu(stage: Stage, tokens: int) -> Case:
    width = 12288

    def turn() -> "partial[Tensor]":
        return partial(swiglu, stage.random(tokens, 2 * width))

    return beside_twin(
        f"swiglu, {tokens} tokens of {width}", turn, _naive_swiglu, 6 * tokens * width
    )


def _naive_swiglu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def _rope(stage: Stage, tokens: int) -> Case:
    config, arena = stage.model, stage.arena
    q_width, kv_width = config.query_heads * config.head_dim, config.kv_heads * config.head_dim
    rotary = rotary_cache(config, tokens, stage.device)
    ones = torch.ones(config.head_dim, device=stage.device)
    weights = AttentionWeights(in_proj=ones, q_norm=ones, k_norm=ones, out_proj=ones)
    positions = torch.arange(tokens, device=stage.device, dtype=torch.int32)
    pages = stage.page_ids(tokens // PAGE_TOKENS)
    places = TokenPlaces(positions, torch.zeros_like(positions), pages[None], stage.rows(tokens))
    layers = iter(range(1000))

    def turn() -> "partial[Tensor]":
        projected = stage.random(tokens, 2 * q_width + 2 * kv_width)
        kv = arena.kv[next(layers) % len(arena.kv)]
        return partial(qk_norm_rope_gate, projected, weights, config, rotary, places, kv)

    def twin(
        projected: Tensor,
        weights: AttentionWeights,
        config: object,
        rotary: Tensor,
        places: TokenPlaces,
        kv: Tensor,
    ) -> Tensor:
        return _naive_rope(projected, stage, rotary, pages, kv)

    return beside_twin(
        f"q and k norm, rotary, pages, {tokens} tokens",
        turn,
        twin,
        4 * tokens * (q_width + 2 * kv_width),
    )


def _naive_rope(
    projected: Tensor, stage: Stage, rotary: Tensor, pages: Tensor, kv: Tensor
) -> Tensor:
    config, tokens = stage.model, projected.shape[0]
    width = config.kv_heads * config.head_dim
    ones = torch.ones(config.head_dim, device=projected.device)
    gated, k, v = projected.split_with_sizes(
        [2 * config.query_heads * config.head_dim, width, width], dim=-1
    )
    q = gated.view(tokens, config.query_heads, 2 * config.head_dim).chunk(2, dim=-1)[0]
    cos, sin = rotary[:, :1], rotary[:, 1:]
    q = apply_rotary(norm.rms_norm(q, ones, config.norm_eps), cos, sin)
    k = norm.rms_norm(k.view(tokens, config.kv_heads, -1), ones, config.norm_eps)
    rows = torch.arange(tokens, device=projected.device)
    page, line = pages[rows // PAGE_TOKENS].long(), rows % PAGE_TOKENS
    kv[page, 0, line] = apply_rotary(k, cos, sin)
    kv[page, 1, line] = v.view(tokens, config.kv_heads, -1)
    return q
