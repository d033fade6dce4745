"""Inputs of the recurrence of rows with drafts, kept on the device from their forward to their
fold. The rows write no slot, because the number of accepted tokens is known later.

Owns the buffers; does not know batch indices. Inputs are kept, never updates: a fold computes these
again from the state. So its error does not grow with every token. Launches that share it share a
stream. There are two sets, and forwards alternate: one folds the other's set while it keeps its
own. Invariant: place r of a set holds row r of the last forward of its turn.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, float32

from tasuki.model.config import ModelConfig


@dataclass(frozen=True)
class LayerInputs:
    """One layer's part of both sets, with the fields of `KeptInputs`. The first dimension is the
    turn."""

    raw: Tensor
    mixed: Tensor
    scalars: Tensor


@dataclass(frozen=True)
class KeptInputs:
    """Kept inputs of `places` rows with at most `tokens` tokens each, in every GDN layer.

    raw [layers, places, tokens, conv_channels]: of the convolution, in the activations' dtype.
    mixed: the same shape and dtype: silu of its output. scalars [layers, places, tokens, one over
    q's length, times key_dim ** -0.5 | one over k's length | decay | beta] float32, per head.
    """

    raw: Tensor
    mixed: Tensor
    scalars: Tensor

    @staticmethod
    def empty(
        config: ModelConfig,
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
    """Both sets, with the fields of `KeptInputs` behind a first dimension of 2."""

    raw: Tensor
    mixed: Tensor
    scalars: Tensor

    @staticmethod
    def empty(
        config: ModelConfig,
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
        """Return one set. turn: 0 or 1."""
        return KeptInputs(self.raw[turn], self.mixed[turn], self.scalars[turn])

    def layer(self, index: int) -> LayerInputs:
        """Return the inputs of one GDN layer, counted among the GDN layers."""
        return LayerInputs(self.raw[:, index], self.mixed[:, index], self.scalars[:, index])

    @property
    def tokens(self) -> int:
        return self.raw.shape[3]


def scalars_a_token(config: ModelConfig) -> int:
    return 2 * config.key_heads + 2 * config.value_heads


def kept_bytes(config: ModelConfig, layers: int, itemsize: int) -> int:
    """Return the bytes of one token of a row, in all layers. itemsize: bytes of an element of the
    activations."""
    return layers * (2 * config.conv_channels * itemsize + 4 * scalars_a_token(config))
