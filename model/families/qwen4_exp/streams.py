"""Hyper-connections in PyTorch: several residual streams, read and written by every block.

The streams of a token are one row [count * hidden], stream by stream. A block reads a mixture of
all normed streams, and its output is added to each stream with a factor of its own.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class MixerWeights:
    """Weights that contract the streams to one input. norm [count * hidden] fp32: 1 + w, of each
    stream alone. down [rank, count * hidden], up [count * hidden, rank]: the mixing weights'
    two products."""

    norm: Tensor
    down: Tensor
    up: Tensor


@dataclass(frozen=True)
class ConnectionWeights:
    """Weights of a hyper-connection. mixer: makes a block's input. inject [count, count * hidden]:
    makes the factors of its output, one a stream."""

    mixer: MixerWeights
    inject: Tensor


def begin_streams(embedded: Tensor, count: int) -> Tensor:
    """Return the streams [T, count * hidden] before the first layer: copies of embedded [T,
    hidden]."""
    return embedded.repeat(1, count)


def each_stream(x: Tensor, count: int) -> Tensor:
    """Return x [..., count * width] as [..., count, width]."""
    return x.reshape(*x.shape[:-1], count, -1)


def norm_each(x: Tensor, weight: Tensor, count: int, eps: float) -> Tensor:
    """Return the RMS norm of each stream of x [T, count * hidden] alone, in x's dtype. weight
    [count * hidden] float32: 1 + w."""
    streams = each_stream(x.float(), count)
    scale = torch.rsqrt(streams.square().mean(-1, keepdim=True) + eps)
    return ((streams * scale).flatten(-2) * weight).to(x.dtype)


def contract(normed: Tensor, weights: MixerWeights, count: int) -> Tensor:
    """Return the mixture [T, hidden] of normed streams [T, count * hidden]."""
    inner = functional.silu(functional.linear(normed, weights.down) / count)
    shares = functional.linear(inner, weights.up).sigmoid()
    return each_stream(shares * normed, count).mean(dim=-2)


def read_streams(
    streams: Tensor, weights: ConnectionWeights, count: int, eps: float
) -> tuple[Tensor, Tensor]:
    """Return a block's input [T, hidden], and the factors [T, count] of its output. streams: [T,
    count * hidden]."""
    normed = norm_each(streams, weights.mixer.norm, count, eps)
    factors = 2 * (functional.linear(normed, weights.inject) / count).sigmoid()
    return contract(normed, weights.mixer, count), factors


def write_streams(streams: Tensor, output: Tensor, factors: Tensor) -> Tensor:
    """Return the streams with a block's output [T, hidden] added, times its factors [T, count]."""
    return streams + (output[:, None, :] * factors[:, :, None]).flatten(1)


def final_input(streams: Tensor, weights: MixerWeights, count: int, eps: float) -> Tensor:
    """Return the head's input [T, hidden] from the streams after the last layer."""
    return contract(norm_each(streams, weights.norm, count, eps), weights, count)
