"""Inputs of the GDN recurrence in a verification of drafts, kept on the device until the fold
(storing the state after accepted tokens). The verification writes no slot, because the number of
accepted tokens is known later.

Owns the buffers; does not know batch indices. Inputs are kept, never state updates: a fold computes
the updates again from the state. So its error does not grow with every token. All launches using
the buffers must be on one stream. There are two sets of buffers, turns 0 and 1. Forwards alternate:
each folds the set of the forward before, and keeps its inputs in the other. Invariant: place r of a
set holds row r of the last forward with this turn.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, float32

from tasuki.model.config import DeltaNetConfig


@dataclass(frozen=True)
class LayerInputs:
    """One layer's part of both sets of kept inputs, with the fields of `KeptInputs`. The first
    dimension is the turn (number of the set, 0 or 1)."""

    raw: Tensor
    mixed: Tensor
    scalars: Tensor


@dataclass(frozen=True)
class KeptInputs:
    """One set of kept recurrence inputs: `places` rows with at most `tokens` tokens each, in every
    GDN layer.

    raw [layers, places, tokens, conv_channels]: inputs of the convolution, in the activations'
    dtype. mixed: silu of the convolution's output, of the same shape and dtype. scalars [layers,
    places, tokens, ...] float32, four groups with one number per head: key_dim ** -0.5 over q's
    length | one over k's length | decay | beta.
    """

    raw: Tensor
    mixed: Tensor
    scalars: Tensor

    @staticmethod
    def empty(
        config: DeltaNetConfig,
        layers: int,
        places: int,
        tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> "KeptInputs":
        shape = (layers, places, tokens)
        channels, numbers = config.conv_channels, scalars_a_token(config)
        return KeptInputs(
            raw=torch.empty(*shape, channels, dtype=dtype, device=device),
            mixed=torch.empty(*shape, channels, dtype=dtype, device=device),
            scalars=torch.empty(*shape, numbers, dtype=float32, device=device),
        )

    @property
    def places(self) -> int:
        return self.raw.shape[1]

    @property
    def tokens(self) -> int:
        return self.raw.shape[2]


@dataclass(frozen=True)
class KeptTurns:
    """Both sets of kept recurrence inputs, with the fields of `KeptInputs` and a first dimension of
    2: the turn."""

    raw: Tensor
    mixed: Tensor
    scalars: Tensor

    @staticmethod
    def empty(
        config: DeltaNetConfig,
        layers: int,
        places: int,
        tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> "KeptTurns":
        one = KeptInputs.empty(config, layers, places, tokens, dtype, torch.device("meta"))
        parts = (one.raw, one.mixed, one.scalars)
        return KeptTurns(
            *(torch.empty(2, *part.shape, dtype=part.dtype, device=device) for part in parts)
        )

    def of(self, turn: int) -> KeptInputs:
        """Return the set of kept inputs with this number. turn: 0 or 1."""
        return KeptInputs(self.raw[turn], self.mixed[turn], self.scalars[turn])

    def layer(self, index: int) -> LayerInputs:
        """Return both sets' inputs of one GDN layer. index: the layer's number among the GDN
        layers."""
        return LayerInputs(self.raw[:, index], self.mixed[:, index], self.scalars[:, index])

    @property
    def tokens(self) -> int:
        return self.raw.shape[3]


def scalars_a_token(config: DeltaNetConfig) -> int:
    return 2 * config.key_heads + 2 * config.value_heads


def kept_bytes(config: DeltaNetConfig, layers: int, itemsize: int) -> int:
    """Return the size in bytes of one token's kept inputs, in all GDN layers. itemsize: bytes of
    one element of the activations."""
    return layers * (2 * config.conv_channels * itemsize + 4 * scalars_a_token(config))
