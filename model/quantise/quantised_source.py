"""Another source's tensors, quantised by a recipe as they are read: weights of any format
and shapes without a checkpoint, for benchmarks and memory plans.

Numbers are made where the other source makes them; one that makes shapes alone gives shapes of what
would be stored. A tensor stands on its own, so fused experts are quantised one by one and their
scales stacked.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tasuki.model.weights.matrix import WHOLE, Kind, Matrix, Part, Segment, WeightsError
from tasuki.model.weights.quantised_segments import BLOCK, Fp8, NvFp4
from tasuki.model.weights.source import TensorSource, stacked

from .recipe import Codec, Recipe

_FUSED = re.compile(r"\.experts\.(?:gate_up|down)_proj$")


class QuantisedSource:
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
        return Matrix((_stacked(found),))

    def stack(self, names: Sequence[str], shape: tuple[int, ...], dtype: torch.dtype) -> Matrix:
        return stacked(self, names, shape, dtype)

    def _codec(self, name: str) -> Codec | None:
        # A fused tensor stands for its experts, which is how others publish them.
        module = _FUSED.sub(".experts.0.down_proj", name.removesuffix(".weight"))
        return self._recipe.codec(module)


def _stacked(segments: list[Fp8 | NvFp4]) -> Segment:
    together = [vars(segment) for segment in segments]
    stacked: dict[str, Tensor] = {}
    for name, first in together[0].items():
        if isinstance(first, Tensor):
            # As bytes, since not every operator knows e4m3.
            dtype = first.dtype
            kept = torch.uint8 if dtype.itemsize == 1 else dtype
            stacked[name] = torch.stack([of[name].view(kept) for of in together]).view(dtype)
    return replace(segments[0], **stacked)  # type: ignore[arg-type]


def _segment(made: dict[str, Tensor]) -> Fp8 | NvFp4:
    packed = made.get("weight_packed")
    if packed is not None:
        divisor = made["weight_global_scale"].reshape(1)
        return NvFp4(packed, made["weight_scale"], torch.ones_like(divisor), divisor)
    codes = made["weight"]
    multiplier = made.get("weight_scale_2")
    if multiplier is not None:
        multiplier = multiplier.reshape(1)
        return NvFp4(codes, made["weight_scale"], multiplier, torch.ones_like(multiplier))
    rows, columns = codes.shape
    scales = made.get("weight_scale_inv")
    if scales is not None:
        return Fp8(codes, scales.float(), BLOCK, BLOCK, Kind.FP8_BLOCK)
    scales = made["weight_scale"].float()
    if scales.numel() == 1:
        return Fp8(codes, scales.reshape(1, 1), rows, columns, Kind.FP8_TENSOR)
    return Fp8(codes, scales, 1, columns, Kind.FP8_CHANNEL)
