"""Differentiable gated delta rule and convolution, fast enough to train with plain PyTorch.

Replaces transformers' reference operators during training. Everything within a chunk is batched.
The state passes from chunk to chunk as S' = M S + B with M and B known in advance, so the only loop
is one matrix product a chunk. (fla's backward refuses Hopper GPUs with Triton 3.4 to 3.7.0,
reporting wrong gradients there.)
"""

from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor
from transformers.models.qwen3_5 import modeling_qwen3_5

_CHUNK = 64


def install() -> None:
    """Make transformers' Qwen3.5 layers of this process use the operators of this module. Raises
    ImportError."""
    for name, operator in (
        ("torch_chunk_gated_delta_rule", gated_delta_rule),
        ("causal_conv1d_fn", causal_convolution),
    ):
        if not hasattr(modeling_qwen3_5, name):
            raise ImportError(f"transformers' qwen3_5 has no {name}; use transformers 5.17")
        setattr(modeling_qwen3_5, name, operator)


def causal_convolution(
    x: Tensor, weight: Tensor, bias: None = None, activation: str = "silu", **_: Any
) -> Tensor:
    """Return SiLU of the depthwise causal convolution. x: [B, C, T]. weight: [C, width]. Result:
    [B, C, T]."""
    width = weight.shape[1]
    padded = functional.pad(x, (width - 1, 0))
    taps = weight.to(x.dtype).unsqueeze(-1)
    total = torch.zeros_like(x)
    for tap in range(width):
        total = total + padded[..., tap : tap + x.shape[-1]] * taps[:, tap]
    return functional.silu(total)


def gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute the gated delta rule. query, key, value: [B, T, H, D]. g (log decay), beta (write
    strength): [B, T, H]. States: [B, H, D, D] float32.

    Normalises query and key. Returns (outputs [B, T, H, D] in query's dtype, final state or None).
    """
    tokens = query.shape[1]
    with torch.autocast(query.device.type, enabled=False):
        q, k, v, decay, strength = (
            _chunked(tensor.float()) for tensor in (query, key, value, g, beta)
        )
        q = _normalised(q) * q.shape[-1] ** -0.5
        k = _normalised(k)
        total = decay.cumsum(-1)
        within = (total.unsqueeze(-1) - total.unsqueeze(-2)).tril().exp().tril()
        weighted = k * strength.unsqueeze(-1)
        right = torch.cat((v * strength.unsqueeze(-1), weighted * total.exp().unsqueeze(-1)), -1)
        solved = torch.linalg.solve_triangular(
            (weighted @ k.mT * within).tril(-1), right, upper=False, unitriangular=True
        )
        written, erased = solved.split(v.shape[-1], -1)
        last = total[..., -1:]
        kept = (k * (last - total).exp().unsqueeze(-1)).mT
        identity = torch.eye(k.shape[-1], device=k.device)
        states, final = _pass_on(
            identity * last.exp().unsqueeze(-1) - kept @ erased, kept @ written, initial_state
        )
        fresh = written - erased @ states
        out = (q * total.exp().unsqueeze(-1)) @ states + (q @ k.mT * within) @ fresh
    joined = out.transpose(2, 3).flatten(1, 2)[:, :tokens]
    return joined.to(query.dtype), final if output_final_state else None


def _pass_on(transition: Tensor, added: Tensor, initial: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the states before each chunk [B, N, H, D, D], and the state after the last chunk. A
    chunk turns a state S into transition S + added. transition, added: [B, N, H, D, D]. initial:
    state before the first chunk."""
    batch, _, heads, rows, columns = added.shape
    state = (
        added.new_zeros(batch * heads, rows, columns)
        if initial is None
        else initial.float().flatten(0, 1)
    )
    before = []
    for matrix, offset in zip(transition.unbind(1), added.unbind(1), strict=True):
        before.append(state)
        state = torch.baddbmm(offset.flatten(0, 1), matrix.flatten(0, 1), state)
    states = torch.stack(before, 1).view(batch, heads, -1, rows, columns).transpose(1, 2)
    return states, state.view(batch, heads, rows, columns)


def _chunked(tensor: Tensor) -> Tensor:
    """Reshape [B, T, H, ...] into chunks [B, N, H, 64, ...], padded with zeros; zeros neither decay
    nor write."""
    missing = -tensor.shape[1] % _CHUNK
    padded = functional.pad(tensor, (0, 0) * (tensor.ndim - 2) + (0, missing))
    return padded.unflatten(1, (-1, _CHUNK)).transpose(2, 3)


def _normalised(tensor: Tensor) -> Tensor:
    return tensor * torch.rsqrt(tensor.square().sum(-1, keepdim=True) + 1e-6)
