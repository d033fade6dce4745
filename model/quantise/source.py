"""A source of weights quantised as they are read, for plans and benchmarks without a quantised
folder."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from tasuki.model.weights.matrix import WHOLE, Matrix, Part
from tasuki.model.weights.published_matrix import PublishedMatrix
from tasuki.model.weights.safetensors_files import DTYPES, PendingChecks
from tasuki.model.weights.source import TensorSource, stacked

from .checkpoint import Codec, Recipe

_WEIGHT = ".weight"
_FUSED = re.compile(r"\.experts\.(?:gate_up|down)_proj$")
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class QuantisedSource:
    """A `TensorSource` with the matrices of another one, quantised by a recipe. A part has the same
    codes and scales as in the whole matrix, which is quantised first."""

    def __init__(self, source: TensorSource, recipe: Recipe) -> None:
        self._source = source
        self._recipe = recipe
        self._shapes: dict[tuple[Codec, torch.Size], dict[str, Tensor]] = {}
        """Quantised tensors without memory, by codec and shape: a model has few shapes."""

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
        made = MadeTensors(name, self._coded(self._source.read(name, shape, dtype), codec))
        segment = PublishedMatrix(made, name, shape).segment(dtype, part, static_inputs=False)
        made.checks.done()
        return Matrix((segment,))

    def stack(self, names: Sequence[str], shape: tuple[int, ...], dtype: torch.dtype) -> Matrix:
        return stacked(self, names, shape, dtype)

    def stored(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        return self._source.stored(name, shape)

    def _coded(self, whole: Tensor, codec: Codec) -> dict[str, Tensor]:
        if not whole.is_meta:
            return _coded(whole, codec)
        key = codec, whole.shape
        if key not in self._shapes:
            self._shapes[key] = _coded(whole, codec)
        return self._shapes[key]

    def _codec(self, name: str) -> Codec | None:
        # A fused tensor has the name of its experts, because others publish experts separately.
        module = _FUSED.sub(".experts.0.down_proj", name.removesuffix(_WEIGHT))
        return self._recipe.codec(module)


class MadeTensors:
    """The tensors of one quantised weight, in memory. It is used like `StoredTensors`."""

    def __init__(self, weight: str, made: Mapping[str, Tensor]) -> None:
        """weight: the weight's name. made: its tensors by the last part of their names."""
        self.checks = PendingChecks()
        module = weight.removesuffix(_WEIGHT)
        self._made = {f"{module}.{last}": tensor for last, tensor in made.items()}

    def __contains__(self, name: object) -> bool:
        return name in self._made

    def path(self, name: str) -> Path:
        """Return a path for error messages: no file has the tensor."""
        return Path("quantised in memory")

    def dtype(self, name: str) -> str:
        return _NAMES[self._made[name].dtype]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._made[name].shape)

    def read(self, name: str, part: Part = WHOLE) -> Tensor:
        """Return the tensor, or a part of it in new memory, contiguous."""
        tensor = self._made[name]
        return tensor[part].contiguous() if part else tensor

    def took(self, name: str) -> None:
        """Do nothing: all tensors of the weight are known."""


def _coded(whole: Tensor, codec: Codec) -> dict[str, Tensor]:
    """Quantise a matrix [out, in], or each expert of a stack [experts, out, in] by itself. Return
    the tensors by the last part of their names."""
    if whole.ndim == 2:
        return codec(whole)
    # If only shapes are known, one expert serves for all: a model has thousands of them.
    found = [codec(expert) for expert in (whole[:1] if whole.is_meta else whole)]
    if whole.is_meta:
        found *= len(whole)
    return {name: _stacked([of[name] for of in found]) for name in found[0]}


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    # Stack bytes, because not every operator knows e4m3.
    dtype = tensors[0].dtype
    kept = torch.uint8 if dtype.itemsize == 1 else dtype
    return torch.stack([tensor.view(kept) for tensor in tensors]).view(dtype)
