"""Rotary position embedding on a part of each head (the two halves rotate as pairs, as in
GPT-NeoX), with YaRN if the model has it.

Text positions are equal on all three axes, so text needs one number a token. Tokens of pictures
have three: each pair of elements follows one axis.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tasuki.model.config import DeltaNetConfig
from tasuki.model.config_json import Yarn


@dataclass(frozen=True)
class RotaryAngles:
    """Angles of the rotary embedding. frequencies [rotary_dim / 2] float32: radians per position,
    on the host; scale: factor of cos and sin. axes [rotary_dim / 2] int64: axis of each pair; None:
    the model has no pictures.

    Frequencies are computed on the host for every device. At position 1,000,000 the last bit of
    another device's power is a hundredth of a radian.
    """

    frequencies: Tensor
    scale: float
    axes: Tensor | None = None

    @staticmethod
    def of(config: DeltaNetConfig) -> "RotaryAngles":
        return RotaryAngles.stretched(config.rotary_dim, config.rope_theta, config.yarn)

    @staticmethod
    def stretched(rotary_dim: int, theta: float, yarn: Yarn | None) -> "RotaryAngles":
        """Return the angles for a rotary base theta, stretched by YaRN's settings; yarn None: as
        trained."""
        exponents = torch.arange(0, rotary_dim, 2).float() / rotary_dim
        powers = theta**exponents
        if yarn is None:
            return RotaryAngles(1.0 / powers, 1.0)
        low, high = _mixed_pairs(rotary_dim, theta, yarn)
        pairs = torch.arange(rotary_dim // 2).float()
        # One minus the ramp, and back: rounded as transformers rounds it.
        kept = 1 - ((pairs - low) / (high - low)).clamp(0, 1)
        slowed = 1.0 / (yarn.factor * powers)
        return RotaryAngles(slowed * (1 - kept) + 1.0 / powers * kept, yarn.attention_factor)

    def table(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin of the angles, each [T, 1, rotary_dim / 2] float32, for positions [T]
        on any device."""
        return self._turned(positions.float()[:, None, None])

    def axis_table(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin as table() does, of positions [3, T]. Equal axes give the bits of
        table(). REQUIRES: axes."""
        assert self.axes is not None, "the model's config names no axes"
        by_pair = positions.float()[self.axes.to(positions.device)]
        return self._turned(by_pair.T[:, None, :])

    def _turned(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions * self.frequencies.to(positions.device)
        return angles.cos() * self.scale, angles.sin() * self.scale


def _mixed_pairs(rotary_dim: int, theta: float, yarn: Yarn) -> tuple[float, float]:
    """Return two pair indices of YaRN: the last pair of elements with its full frequency, and the
    first one with its frequency divided by the whole factor."""

    def pair(turns: float) -> float:
        """Return the index (fractional) of the pair of elements with `turns` full rotations over
        the trained length."""
        return rotary_dim * math.log(yarn.original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(yarn.beta_fast), pair(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    return low, high + 0.001 if low == high else high


def rotary_cache(config: DeltaNetConfig, positions: int, device: torch.device) -> Tensor:
    """Return the table of rotary angles [positions, 2, rotary_dim / 2] float32: cos, then sin, of
    every position. It is made once at start-up.

    A table gives the reference's angles to the last bit, and costs a token 1% of the kernel's
    bytes.
    """
    cos, sin = RotaryAngles.of(config).table(torch.arange(positions, device=device))
    return torch.cat([cos, sin], dim=1)


def rotary_cache_bytes(config: DeltaNetConfig, positions: int) -> int:
    """Return the size of `rotary_cache` in bytes: 256 per position with 64 rotated elements, 64 MiB
    for 262,144 positions."""
    return positions * config.rotary_dim * 4


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x [T, heads, head_dim] with its first rotary_dim elements rotated and the rest
    unchanged."""
    half = cos.shape[-1]
    first, second, rest = x.split_with_sizes([half, half, x.shape[-1] - 2 * half], dim=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat([part.to(x.dtype) for part in turned] + [rest], dim=-1)
