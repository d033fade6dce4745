"""The least time a step of a whole model can take, by its bytes or FLOPs and a run's floors.

Decode moves bytes: the weights a step reads, each request's state in and out, its KV. Prefill
multiplies: its FLOPs, or the weights' bytes where a chunk is too short for that to matter.
"""

from dataclasses import dataclass

import torch

from tasuki.model.config import ModelConfig
from tasuki.model.costs import PrefillFlops, ShapesOnly, WeightSizes
from tasuki.model.quantise.quantised_source import QuantisedSource
from tasuki.model.quantise.recipe import RECIPES
from tasuki.pycache.layout import PAGE_TOKENS, CacheLayout

from .floors import Floors


@dataclass(frozen=True)
class ModelFloor:
    floors: Floors
    sizes: WeightSizes
    layout: CacheLayout
    flops: PrefillFlops

    @staticmethod
    def of(
        config: ModelConfig, layout: CacheLayout, floors: Floors, quantization: str = ""
    ) -> "ModelFloor":
        """quantization: of the weights, whose bytes count as they are stored. A prefill's floor is
        that of bf16 products in every format."""
        dtype: torch.dtype = getattr(torch, layout.conv_dtype)
        source = QuantisedSource(ShapesOnly(), RECIPES[quantization]) if quantization else None
        sizes = WeightSizes.of(config, dtype, source)
        return ModelFloor(floors, sizes, layout, PrefillFlops.for_model(config))

    @property
    def _read_bytes(self) -> float:
        """Of a token's KV: a draft layer's is read where it guesses."""
        return self.layout.full_layers * self.layout.block_bytes / PAGE_TOKENS

    def decode(self, batch: int, context: float) -> float:
        """Seconds of a step of `batch` requests with `context` tokens each."""
        one = context * self._read_bytes + 2 * self.layout.slot_bytes
        return self.floors.of_bytes(self.sizes.step_bytes(batch) + batch * one)

    def prefill(self, tokens: int, cached: int = 0) -> float:
        """Seconds to forward `tokens` behind `cached` ones."""
        flops = self.flops.of(cached + tokens) - self.flops.of(cached)
        kv = cached * self._read_bytes
        moved = self.sizes.step_bytes(tokens) + kv + 2 * self.layout.slot_bytes
        return max(self.floors.of_flops(flops), self.floors.of_bytes(moved))
