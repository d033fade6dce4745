"""Where an assembly reads a model's weights from: published tensors by name."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from .matrix import Matrix
from .part import WHOLE, Part


class TensorSource(Protocol):
    """Published tensors by name without the model's prefix, as `layers.0.mlp.gate.weight`. A
    `part` of one holds what the whole has there; bytes outside of it are not read where the source
    can avoid it."""

    def has(self, name: str) -> bool:
        """Whether it is there, as plain numbers or quantised."""

    def read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Tensor:
        """Of exactly that shape, converted to dtype, contiguous; dequantised where it is
        quantised. Raises WeightsError."""

    def matrix(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Matrix:
        """[..., out, in] of exactly that shape, as it is stored where it is quantised, else in
        dtype. Raises WeightsError, also where `part` cuts a block of quantised values."""

    def stack(self, names: Sequence[str], shape: tuple[int, ...], dtype: torch.dtype) -> Matrix:
        """Of each name matrix(name, shape, dtype), in a new first dimension. Raises WeightsError,
        also where they are stored in different ways."""


def stacked(
    source: TensorSource, names: Sequence[str], shape: tuple[int, ...], dtype: torch.dtype
) -> Matrix:
    """TensorSource.stack(), one by one."""
    return Matrix.stacked([source.matrix(name, shape, dtype) for name in names], names)


class PlainSource(ABC):
    """What `TensorSource`s have in common that hold plain numbers alone."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """As TensorSource.has."""

    @abstractmethod
    def read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Tensor:
        """As TensorSource.read."""

    def matrix(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Matrix:
        """As TensorSource.matrix."""
        return Matrix.of(self.read(name, shape, dtype, part))

    def stack(self, names: Sequence[str], shape: tuple[int, ...], dtype: torch.dtype) -> Matrix:
        """As TensorSource.stack."""
        return stacked(self, names, shape, dtype)
