"""Another source's tensors, quantised by a recipe as they are read: FP8 weights of any shapes
without a checkpoint, for benchmarks and memory plans.

Numbers are made where the other source makes them; one that makes shapes alone gives shapes of what
would be stored. A tensor stands on its own, so fused experts are quantised one by one and their
scales stacked.
"""

import re
from dataclasses import replace

import torch
from torch import Tensor

from tasuki.model.weights.fp8 import BLOCK, Fp8
from tasuki.model.weights.matrix import Matrix
from tasuki.model.weights.part import WHOLE, Part, WeightsError
from tasuki.model.weights.segment import Kind
from tasuki.model.weights.source import TensorSource

from .recipe import RECIPES, Codec, Recipe

SERVED_ON_GPUS = tuple(name for name in RECIPES if name.startswith("fp8"))
"""Formats that GPUs have kernels for, by what `tasuki quantise --format` takes."""
_FUSED = re.compile(r"\.experts\.(?:gate_up|down)_proj$")


class QuantisedSource:
    """recipe: of FP8 alone."""

    def __init__(self, source: TensorSource, recipe: Recipe) -> None:
        self._source = source
        self._recipe = recipe

    def has(self, name: str) -> bool:
        return self._source.has(name)

    def read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Tensor:
        return self._source.read(name, shape, dtype, part)

    def matrix(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Matrix:
        codec = self._codec(name)
        if codec is None:
            return self._source.matrix(name, shape, dtype, part)
        if part:
            raise WeightsError(f"tensor {name} is quantised as it is read, and cannot be cut")
        whole = self._source.read(name, shape, dtype)
        if whole.ndim == 2:
            return Matrix((_segment(codec(whole)),))
        # Of shapes alone one stands for all: a model has thousands of experts.
        found = [_segment(codec(expert)) for expert in (whole[:1] if whole.is_meta else whole)]
        if whole.is_meta:
            found *= len(whole)
        # As bytes, since not every operator knows e4m3.
        codes = torch.stack([segment.values.view(torch.uint8) for segment in found])
        values = codes.view(torch.float8_e4m3fn)
        scales = torch.stack([segment.scales for segment in found])
        return Matrix((replace(found[0], values=values, scales=scales),))

    def _codec(self, name: str) -> Codec | None:
        # A fused tensor stands for its experts, which is how others publish them.
        module = _FUSED.sub(".experts.0.down_proj", name.removesuffix(".weight"))
        return self._recipe.codec(module)


def _segment(made: dict[str, Tensor]) -> Fp8:
    codes = made["weight"]
    rows, columns = codes.shape
    scales = made.get("weight_scale_inv")
    if scales is not None:
        return Fp8(codes, scales.float(), BLOCK, BLOCK, Kind.FP8_BLOCK)
    scales = made["weight_scale"].float()
    if scales.numel() == 1:
        return Fp8(codes, scales.reshape(1, 1), rows, columns, Kind.FP8_TENSOR)
    return Fp8(codes, scales, 1, columns, Kind.FP8_CHANNEL)
