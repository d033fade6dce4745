"""The gated delta rule with a decay of its own for every key channel, in PyTorch: token by token,
and in chunks.

A chunk has C tokens with cumulative log decays G [C, key_dim]. Products of two tokens s <= t are
decayed by exp(G_t - G_s) in each channel. The factors exp(G_t) and exp(-G_s) would overflow apart.
So a chunk is divided into blocks of B tokens. Tokens of two blocks are decayed from s to the begin
of t's block, and from there to t. Neither exponent is above 0. Tokens of one block are decayed pair
by pair.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .reference_chunked import Settle, carry_state

_BLOCK_TOKENS = 16


def channel_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Apply the rule to one token of each of N sequences; float32 throughout. Return o [N, heads,
    value_dim] and the next state.

    q, k: [N, heads, key_dim], of unit length, q scaled. v: [N, heads, value_dim]. g: [N, heads,
    key_dim], the log decay, <= 0. beta: [N, heads]. state: [N, heads, value_dim, key_dim]. Rule: S
    = S diag(exp(g)); d = beta (v - S k); S += d k^T; o = S q.
    """
    state = state * g.exp()[..., None, :]
    keys = k[..., None, :]
    delta = beta[..., None] * (v - (state * keys).sum(-1))
    state.addcmul_(delta[..., None], keys)
    return (state * q[..., None, :]).sum(-1), state


def chunk_channel_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    keep: Sequence[int],
    settle: Settle,
) -> tuple[Tensor, Tensor]:
    """Apply the rule to one sequence of N chunks of C tokens, as chunk_gated_delta_rule() does;
    float32 throughout. g: [N, heads, C, key_dim]. REQUIRES: C is a multiple of 16."""
    total = g.cumsum(-2)
    beta = beta[..., None]
    growth = total.exp()
    scores, overlaps = decayed_products(q, k, g, total)
    # The solve reads only below the diagonal.
    identity = torch.eye(q.shape[2], device=q.device).expand_as(overlaps)
    inverse = torch.linalg.solve_triangular(
        beta * overlaps, identity, upper=False, unitriangular=True
    )
    last = total[..., -1:, :]
    parts = (
        inverse @ (v * beta),
        inverse @ (k * growth * beta),
        scores,
        q * growth,
        k * (last - total).exp(),
        last.exp(),
    )
    return carry_state(state, parts, keep, settle)


def decayed_products(q: Tensor, k: Tensor, g: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """Return two matrices [N, heads, C, C] of chunks: the products q_t . k_s and k_t . k_s, decayed
    from s to t in each channel. They are 0 for s > t.

    q, k: [N, heads, C, key_dim]. g: the log decays, total: their cumulative sums, both of the same
    shape.
    """
    size = q.shape[2]
    scores, overlaps = (q.new_zeros(*q.shape[:3], size) for _ in range(2))
    for begin in range(0, size, _BLOCK_TOKENS):
        rows = slice(begin, begin + _BLOCK_TOKENS)
        # Cumulative decay before the block's first token.
        base = (total[..., begin, :] - g[..., begin, :])[..., None, :]
        inner = (total[..., rows, :] - base).exp()
        earlier = k[..., :begin, :] * (base - total[..., :begin, :]).exp()
        scores[..., rows, :begin] = (q[..., rows, :] * inner) @ earlier.transpose(-1, -2)
        overlaps[..., rows, :begin] = (k[..., rows, :] * inner) @ earlier.transpose(-1, -2)
        for key in range(begin, rows.stop):
            later = slice(key, rows.stop)
            gap = total[..., later, :] - total[..., key : key + 1, :]
            decayed = k[..., key : key + 1, :] * gap.exp_()
            scores[..., later, key] = (q[..., later, :] * decayed).sum(-1)
            overlaps[..., later, key] = (k[..., later, :] * decayed).sum(-1)
    return scores, overlaps
