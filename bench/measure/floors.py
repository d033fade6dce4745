"""Hardware floors: the device's highest rates, measured in the same run as the figures compared
with them. From these rates follows the least time of a whole model's step.

A floor is bytes over the copy bandwidth, or operations over the rate of a large matrix product. No
program reaches datasheet rates. Decode moves bytes: the weights read by a step, each request's
state in and out, its KV. Prefill multiplies: its FLOPs, or the weights' bytes if a chunk is too
short for FLOPs to dominate.
"""

from dataclasses import dataclass

import torch

from tasuki.model.config import ModelConfig
from tasuki.model.costs import PrefillFlops, ShapesOnly, WeightSizes
from tasuki.model.families.registry import family_of
from tasuki.model.quantise.checkpoint import RECIPES
from tasuki.model.quantise.source import QuantisedSource
from tasuki.pycache.arena import torch_dtype
from tasuki.pycache.layout import PAGE_TOKENS, CacheLayout

from .timing import median_seconds

_GPU_COPY_BYTES = 4 * 2**30
_CPU_COPY_BYTES = 64 * 2**20
_GPU_MATMUL_SIZE = 8192
_CPU_MATMUL_SIZE = 512


@dataclass(frozen=True)
class Floors:
    """Measured rates of the device. copy_bandwidth: bytes read plus bytes written, a second.
    matmul_rate: FLOPs a second of a square product of random values in the model's dtype."""

    copy_bandwidth: float
    matmul_rate: float

    def of_bytes(self, count: float) -> float:
        """Return the least seconds to move `count` bytes, reads and writes together."""
        return count / self.copy_bandwidth

    def of_flops(self, count: float) -> float:
        """Return the least seconds of `count` FLOPs."""
        return count / self.matmul_rate


def measure_floors(device: torch.device, dtype: torch.dtype) -> Floors:
    """Measure the device's floors. Takes about a second, and frees its allocations."""
    on_gpu = device.type == "cuda"
    floors = Floors(
        _copy_bandwidth(device, _GPU_COPY_BYTES if on_gpu else _CPU_COPY_BYTES),
        _matmul_rate(device, dtype, _GPU_MATMUL_SIZE if on_gpu else _CPU_MATMUL_SIZE),
    )
    if on_gpu:
        torch.cuda.empty_cache()
    return floors


def _copy_bandwidth(device: torch.device, size: int) -> float:
    source = torch.randint(0, 256, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / median_seconds(lambda: target.copy_(source), device)


def _matmul_rate(device: torch.device, dtype: torch.dtype, size: int) -> float:
    # Random values: products of zeros run faster than those of real data.
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(left)
    seconds = median_seconds(lambda: torch.mm(left, right.t(), out=out), device)
    return 2 * size**3 / seconds


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
        """Build the floors of a model. quantization: format of the weights; their bytes count as
        stored. A prefill's floor uses bf16 products in every format."""
        dtype = torch_dtype(layout.columns[0].dtype)
        plain, family = ShapesOnly(), family_of(config)
        source = QuantisedSource(plain, RECIPES[quantization]) if quantization else plain
        sizes = family.weight_sizes(config, dtype, source)
        return ModelFloor(floors, sizes, layout, family.prefill_flops(config))

    @property
    def _read_bytes(self) -> float:
        """Return the KV bytes read by a step for one token of context. A draft layer's KV is read
        only for its own guesses, so it is left out."""
        own = len(self.layout.regions) - self.layout.draft_layers
        return own * self.layout.block_bytes / PAGE_TOKENS

    def decode(self, batch: int, context: float) -> float:
        """Return the least seconds of a decode step of `batch` requests with `context` tokens
        each."""
        one = context * self._read_bytes + 2 * self.layout.slot_bytes
        return self.floors.of_bytes(self.sizes.step_bytes(batch) + batch * one)

    def prefill(self, tokens: int, cached: int = 0) -> float:
        """Return the least seconds to forward `tokens` tokens after `cached` cached ones."""
        flops = self.flops.of(cached + tokens) - self.flops.of(cached)
        kv = cached * self._read_bytes
        moved = self.sizes.step_bytes(tokens) + kv + 2 * self.layout.slot_bytes
        return max(self.floors.of_flops(flops), self.floors.of_bytes(moved))
