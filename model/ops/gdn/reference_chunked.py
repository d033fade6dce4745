"""The gated delta rule in chunks: the work inside all chunks at once, then a loop over chunks for
the state.

A chunk has C tokens with cumulative log decay G. The updates (deltas) D solve (I + A) D = beta (V -
exp(G) K S^T). A[t, s] is beta_t exp(G_t - G_s) times the product of k_t and k_s, for s < t. Both
right-hand sides are solved before the loop.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

CHUNK_TOKENS = 64

Settle = Callable[[int, Tensor], Tensor]
"""A function of a chunk's number and the state [heads, value_dim, key_dim] after it. It returns the
state to go on with, which may be rounded."""


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    keep: Sequence[int],
    settle: Settle,
) -> tuple[Tensor, Tensor]:
    """Apply the gated delta rule to one sequence of N chunks of C tokens; float32 throughout.

    q, k: [N, heads, C, key_dim], of unit length, q scaled. v: [N, heads, C, value_dim]. g, beta:
    [N, heads, C]; g is the log decay. state: [heads, value_dim, key_dim]. keep: ascending chunk
    numbers. settle: called after every chunk. Returns o [N, heads, C, value_dim] and the states
    after the chunks in keep, [len(keep), heads, value_dim, key_dim]. A padding token has g = beta =
    0: it changes no state, and its o is meaningless.
    """
    size = q.shape[2]
    total = g.cumsum(-1)
    beta = beta[..., None]
    inside = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
    gap = total[..., :, None] - total[..., None, :]
    # Above the diagonal the gap is positive and its exponential may be infinite: mask before, not
    # after.
    decay = gap.masked_fill_(~inside, -torch.inf).exp_()
    keys_t = k.transpose(-1, -2)
    growth = total.exp()[..., None]
    system = (beta * (k @ keys_t)).mul_(decay)
    # The solve reads only below the diagonal. Inverting and multiplying is faster than solving for
    # both wide sides, and as exact: the unit-triangular inverse stays small.
    identity = torch.eye(size, device=q.device).expand_as(system)
    inverse = torch.linalg.solve_triangular(system, identity, upper=False, unitriangular=True)
    values, reads = inverse @ (v * beta), inverse @ (k * (beta * growth))
    scores = (q @ keys_t).mul_(decay)
    queries = q * growth
    last = total[..., -1:]
    writes = k * (last - total).exp()[..., None]
    fades = last.exp()[..., None]
    return carry_state(state, (values, reads, scores, queries, writes, fades), keep, settle)


def carry_state(
    state: Tensor,
    parts: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor],
    keep: Sequence[int],
    settle: Settle,
) -> tuple[Tensor, Tensor]:
    """Run the loop over chunks, and return the outputs and the kept states, as
    chunk_gated_delta_rule() does.

    parts: the work inside the chunks. values [N, heads, C, value_dim] and reads [N, heads, C,
    key_dim]: the deltas are values - reads S^T. scores [N, heads, C, C]: of queries and keys inside
    a chunk. queries, writes [N, heads, C, key_dim]: decayed from the chunk's begin, and to its end.
    fades [N, heads, 1, 1 or key_dim]: decay of the state over a chunk.
    """
    values, reads, scores, queries, writes, fades = parts
    chunks = len(values)
    outputs = torch.empty_like(values)
    kept = state.new_empty(len(keep), *state.shape)
    wanted = {chunk: row for row, chunk in enumerate(keep)}
    for chunk in range(chunks):
        state_t = state.transpose(-1, -2)
        deltas = torch.baddbmm(values[chunk], reads[chunk], state_t, alpha=-1)
        outputs[chunk] = torch.baddbmm(queries[chunk] @ state_t, scores[chunk], deltas)
        state = torch.baddbmm(state * fades[chunk], deltas.transpose(-1, -2), writes[chunk])
        state = settle(chunk, state)
        if chunk in wanted:
            kept[wanted[chunk]] = state
    return outputs, kept
