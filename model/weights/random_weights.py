"""Random parameters in any model's shape, for demonstrations and benchmarks without a download.

Does not know layers: it is one more `TensorSource`. Tensors are drawn where they are wanted: a 9B
model takes minutes on a CPU and a second on a GPU. A tensor depends on (seed, name, kind of device)
only, so two processes with the same config, seed and kind of device hold the same weights.
"""

import hashlib
import math

import torch
from torch import Tensor

from tasuki.model.config import ModelConfig

from .layers import ModelWeights, assemble
from .matrix import WHOLE, Part
from .source import PlainSource

_LOGIT_SPREAD = 16.0


def random_weights(
    config: ModelConfig, seed: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> ModelWeights:
    """Weights that keep activations near unit size; logits spread widely, so that ties are rare."""
    return assemble(config, RandomSource(seed, device), dtype, device)


class RandomSource(PlainSource):
    """Has fused experts and every other tensor that is asked for. A part holds the numbers that
    the whole tensor has there."""

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self._seed = seed
        self._device = torch.device(device)

    def has(self, name: str) -> bool:
        return True

    def read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Tensor:
        return self._whole(name, shape, dtype)[part].contiguous()

    def _whole(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        digest = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()
        generator = torch.Generator(self._device).manual_seed(int.from_bytes(digest[:7], "little"))
        if name.endswith("A_log"):
            # Decay rates from 1 to 16 a step, as such models are initialised for training.
            return self._uniform(shape, 1, 16, generator).log().to(dtype)
        if name.endswith("dt_bias"):
            return self._uniform(shape, -7, -2, generator).to(dtype)
        noise = torch.randn(shape, generator=generator, device=self._device)
        if name.endswith("linear_attn.norm.weight"):
            return (1 + 0.1 * noise).to(dtype)
        if len(shape) == 1:
            return (0.1 * noise).to(dtype)
        gain = _LOGIT_SPREAD if name in ("embed_tokens.weight", "lm_head.weight") else 1.0
        # In place: a whole layer's experts in float32 are gigabytes.
        return noise.mul_(gain / math.sqrt(shape[-1])).to(dtype)

    def _uniform(
        self, shape: tuple[int, ...], low: float, high: float, generator: torch.Generator
    ) -> Tensor:
        return torch.empty(shape, device=self._device).uniform_(low, high, generator=generator)
