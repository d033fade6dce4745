"""What a published matrix is stored as: plain numbers, or fewer bits with scales.

A segment is a frozen dataclass whose tensors all begin with the same leading dimensions: none of a
single matrix, [experts] of a stack. So experts are stacked, chosen and moved without knowing kinds.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Self

import torch
from torch import Tensor

from .part import WeightsError

_PIECE_ELEMENTS = 2**22
"""Dequantised at a time: 16 MiB in float32, a fraction of any layer that is worth quantising."""
_ROWS = 128


class Kind(Enum):
    """How numbers are stored, which is what kernels are chosen by; names as engines have them."""

    PLAIN = "plain"
    FP8_BLOCK = "fp8_block"
    FP8_CHANNEL = "fp8_channel"
    FP8_TENSOR = "fp8_tensor"
    NVFP4 = "nvfp4"


class Segment(ABC):
    """[..., out, in] of one published tensor."""

    @property
    @abstractmethod
    def kind(self) -> Kind: ...

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]: ...

    @abstractmethod
    def rows(self, begin: int, end: int) -> Tensor:
        """Those rows of a single matrix, dequantised: [end - begin, in] float32, new memory."""

    def pieces(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """All rows in order, dequantised in float32 and rounded to dtype, few at a time."""
        count, width = self.shape
        step = max(_PIECE_ELEMENTS // width // _ROWS, 1) * _ROWS
        for begin in range(0, count, step):
            yield self.rows(begin, min(begin + step, count)).to(dtype)

    def last_rows(self, count: int) -> "Segment":
        """The last `count` of a single matrix, a view. Raises WeightsError where a scale covers
        rows on both sides of the cut."""
        raise WeightsError(f"{count} rows would cut a {self.kind.value} matrix of {self.shape}")

    @property
    def stored_as(self) -> tuple[str, ...]:
        """Kind, and shape of each tensor: equal where two may be stacked."""
        return (self.kind.value, *(str(list(t.shape)) for t in self._tensors().values()))

    @property
    def device(self) -> torch.device:
        return next(iter(self._tensors().values())).device

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors().values())

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """With another tensor in the place of each: moved, or one of a stack."""
        changed = {name: change(tensor) for name, tensor in self._tensors().items()}
        return replace(self, **changed)  # type: ignore[type-var]

    @staticmethod
    def stack(segments: "Sequence[Segment]") -> "Segment":
        """With a new first dimension. REQUIRES: one kind, and one shape of each tensor."""
        together = [segment._tensors() for segment in segments]
        stacked = {name: torch.stack([of[name] for of in together]) for name in together[0]}
        return replace(segments[0], **stacked)  # type: ignore[type-var]

    def _tensors(self) -> dict[str, Tensor]:
        # Of an instance, since a checkpoint has tens of thousands and fields() is slow.
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}


@dataclass(frozen=True)
class Plain(Segment):
    """values [..., out, in] in the model's dtype."""

    values: Tensor

    @property
    def kind(self) -> Kind:
        return Kind.PLAIN

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def rows(self, begin: int, end: int) -> Tensor:
        return self.values[begin:end].to(torch.float32, copy=True)

    def last_rows(self, count: int) -> "Plain":
        return Plain(self.values[-count:])

    def pieces(self, dtype: torch.dtype) -> Iterator[Tensor]:
        yield self.values.to(dtype)
