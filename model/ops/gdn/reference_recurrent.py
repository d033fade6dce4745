"""The gated delta rule token by token in PyTorch: the step of decode, and the reference of the
chunked form."""

import torch
from torch import Tensor


def recurrent_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Apply the gated delta rule to one token of each of N sequences; float32 throughout.

    q, k: [N, heads, key_dim], of unit length, q scaled. v: [N, heads, value_dim]. g, beta: [N,
    heads]; g is the log decay, <= 0. state: [N, heads, value_dim, key_dim]. Returns o [N, heads,
    value_dim] and the next state. Rule: S = exp(g) S; d = beta (v - S k); S += d k^T; o = S q.
    """
    state = state * g.exp()[..., None, None]
    keys = k[..., None, :]
    delta = beta[..., None] * (v - (state * keys).sum(-1))
    state.addcmul_(delta[..., None], keys)
    return (state * q[..., None, :]).sum(-1), state


def recurrent_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Apply `recurrent_step` to T tokens of one sequence, one after the other. Return the outputs
    and the last state. Arguments and results have the leading dimension T in place of N; the state
    has neither."""
    outputs = []
    state = state[None]
    for token in range(q.shape[0]):
        row = slice(token, token + 1)
        output, state = recurrent_step(q[row], k[row], v[row], g[row], beta[row], state)
        outputs.append(output)
    return torch.cat(outputs), state[0]
