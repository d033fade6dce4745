"""Matrices of a model, the segments (stored parts) of a matrix, and parts of both.

A part is a range of a tensor's elements. WeightsError is the error for anything unreadable.

A segment is one published matrix as stored: plain numbers, or fewer bits with scales. It is a
frozen dataclass. All its tensors begin with the same leading dimensions: none for a single matrix,
[experts] for a stack. So code can stack, choose and move experts without knowing storage formats.

A matrix, as used by operators, is segments stacked along `out`, each as it was stored. Projections
of one input are one matrix. Neighbouring segments of plain numbers are merged into one tensor.
Quantised segments stay separate, since scales of different tensors must not be mixed. Immutable.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby
from typing import Self

import torch
from torch import Tensor


class WeightsError(ValueError):
    """Error: weights do not fit the config. The message names the tensor or file, and the fix."""


class BlockCut(WeightsError):
    """Error: a part of a tensor would cut a block of quantised values with a common scale. unit:
    number of elements along the cut dimension of a block."""

    def __init__(self, message: str, unit: int) -> None:
        super().__init__(message)
        self.unit = unit


Part = tuple[slice, ...]
"""A part of a tensor: one slice for each of the first dimensions. Dimensions after the last slice
are taken whole."""
WHOLE: Part = ()


def bounds(part: Part, shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the (begin, end) indices of the part in every dimension of a tensor of this shape."""
    whole = (*part, *(slice(None),) * (len(shape) - len(part)))
    return [piece.indices(size)[:2] for piece, size in zip(whole, shape, strict=True)]


_PIECE_ELEMENTS = 2**22
"""Number of elements dequantised together: 16 MiB in float32, a small part of any quantised
layer."""
_ROWS = 128


class Kind(Enum):
    """Storage format of a weight: plain, FP8 or NVFP4. It selects the kernels. The names are those
    used by other engines."""

    PLAIN = "plain"
    FP8_BLOCK = "fp8_block"
    FP8_CHANNEL = "fp8_channel"
    FP8_TENSOR = "fp8_tensor"
    NVFP4 = "nvfp4"


class Segment(ABC):
    """One published weight [..., out, in] in its storage format."""

    @property
    @abstractmethod
    def kind(self) -> Kind: ...

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]: ...

    @abstractmethod
    def rows(self, begin: int, end: int) -> Tensor:
        """Return the rows [begin, end) of a single matrix, dequantised into new memory: [end -
        begin, in] float32."""

    def pieces(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """Yield all rows of a single matrix in order, some at a time. They are dequantised in
        float32 and rounded to dtype."""
        count, width = self.shape
        step = max(_PIECE_ELEMENTS // width // _ROWS, 1) * _ROWS
        for begin in range(0, count, step):
            yield self.rows(begin, min(begin + step, count)).to(dtype)

    def last_rows(self, count: int) -> "Segment":
        """Return the last `count` rows of a single matrix, as a view. Raises WeightsError if a
        scale covers rows on both sides of the boundary."""
        raise WeightsError(f"{count} rows would cut a {self.kind.value} matrix of {self.shape}")

    @abstractmethod
    def runs(self, rows: "Sequence[range]") -> "Segment":
        """Return these runs of rows of a single matrix, one below the other, in new memory. Raises
        WeightsError if a run would cut rows with a common scale."""

    @property
    def stored_as(self) -> tuple[str, ...]:
        """Return the storage format, and the shape of each tensor, as texts. Segments with equal
        texts can be stacked."""
        return (self.kind.value, *(str(list(t.shape)) for t in self._tensors().values()))

    @property
    def device(self) -> torch.device:
        return next(iter(self._tensors().values())).device

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors().values())

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return a copy of the segment with `change` applied to each of its tensors, such as a move
        to a device or the choice of one expert."""
        changed = {name: change(tensor) for name, tensor in self._tensors().items()}
        return replace(self, **changed)  # type: ignore[type-var]

    @staticmethod
    def stack(segments: "Sequence[Segment]") -> "Segment":
        """Return the stack of segments in a new first dimension, such as experts. REQUIRES: all
        have one storage format, and equal shapes of each tensor."""
        together = [segment._tensors() for segment in segments]
        stacked = {name: torch.stack([of[name] for of in together]) for name in together[0]}
        return replace(segments[0], **stacked)  # type: ignore[type-var]

    def _tensors(self) -> dict[str, Tensor]:
        # Read the instance's attributes: a checkpoint has tens of thousands of them, and fields()
        # is slow.
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}


@dataclass(frozen=True)
class Plain(Segment):
    """An unquantised weight. values: [..., out, in] in the model's dtype."""

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

    def runs(self, rows: Sequence[range]) -> "Plain":
        return Plain(runs_of(self.values, rows))

    def pieces(self, dtype: torch.dtype) -> Iterator[Tensor]:
        yield self.values.to(dtype)


def runs_of(tensor: Tensor, rows: Sequence[range]) -> Tensor:
    """Return these runs of a tensor's first dimension, one behind the other, in new memory."""
    # Move bytes, because not every operator knows e4m3.
    narrow = tensor.dtype.itemsize == 1
    codes = tensor.view(torch.uint8) if narrow else tensor
    found = torch.cat([codes[run.start : run.stop] for run in rows])
    return found.view(tensor.dtype) if narrow else found


def named_kinds(kinds: Iterable[Kind]) -> str:
    return "+".join(sorted({kind.value for kind in kinds}))


@dataclass(frozen=True)
class Matrix:
    """A matrix [..., out, in] of segments, one below the other along `out`. Leading dimensions,
    [experts], are equal in all segments."""

    segments: tuple[Segment, ...]

    @staticmethod
    def of(values: Tensor) -> "Matrix":
        """Return an unquantised matrix of one segment with these values."""
        return Matrix((Plain(values),))

    @staticmethod
    def fused(matrices: "Sequence[Matrix]") -> "Matrix":
        """Return one matrix with the rows of all matrices, one below the other. Neighbouring plain
        segments are merged."""
        listed = [segment for matrix in matrices for segment in matrix.segments]
        found: list[Segment] = []
        for plain, group in groupby(listed, key=lambda segment: isinstance(segment, Plain)):
            same = list(group)
            if plain and len(same) > 1:
                same = [Plain(torch.cat([item.values for item in same], dim=-2))]  # type: ignore[attr-defined]
            found.extend(same)
        return Matrix(tuple(found))

    @staticmethod
    def stacked(matrices: "Sequence[Matrix]", names: Sequence[str]) -> "Matrix":
        """Return one stack [experts, out, in] of the matrices. names: the matrices' names, for
        error messages. Raises WeightsError if the matrices are stored in different ways."""
        first = [segment.stored_as for segment in matrices[0].segments]
        for name, matrix in zip(names, matrices, strict=True):
            if [segment.stored_as for segment in matrix.segments] != first:
                raise WeightsError(
                    f"{name} is stored as {matrix.layout} and {names[0]} as "
                    f"{matrices[0].layout}; quantise a layer's experts alike"
                )
        columns = zip(*(matrix.segments for matrix in matrices), strict=True)
        return Matrix(tuple(Segment.stack(column) for column in columns))

    @property
    def shape(self) -> tuple[int, ...]:
        *front, _, columns = self.segments[0].shape
        return (*front, sum(segment.shape[-2] for segment in self.segments), columns)

    @property
    def kinds(self) -> frozenset[Kind]:
        return frozenset(segment.kind for segment in self.segments)

    @property
    def layout(self) -> str:
        """Return a text with the storage format and the tensor shapes of each segment."""
        return ", ".join(" ".join(segment.stored_as) for segment in self.segments)

    @property
    def nbytes(self) -> int:
        return sum(segment.nbytes for segment in self.segments)

    @property
    def is_on_cpu(self) -> bool:
        return self.segments[0].device.type == "cpu"

    @property
    def is_plain(self) -> bool:
        """Return true if the matrix is a single unquantised tensor."""
        return len(self.segments) == 1 and isinstance(self.segments[0], Plain)

    @property
    def plain(self) -> Tensor:
        """Return the unquantised matrix as one tensor. Raises WeightsError if any of it is
        quantised, because kernels for plain numbers would read codes as weights."""
        if len(self.segments) == 1 and isinstance(self.segments[0], Plain):
            return self.segments[0].values
        raise WeightsError(
            f"weights are stored as {named_kinds(self.kinds)} and this kernel reads plain numbers; "
            "serve the checkpoint with --device cpu, or convert it to BF16"
        )

    @property
    def only(self) -> Segment:
        """Return the matrix's single segment. Raises WeightsError if there are several, because the
        kernels of experts read one segment."""
        if len(self.segments) > 1:
            raise WeightsError(
                f"gate and up of experts are stored apart, as {self.layout}; quantise them alike, "
                "or serve the checkpoint with --device cpu"
            )
        return self.segments[0]

    def __getitem__(self, expert: int) -> "Matrix":
        """Return the matrix of one expert from a stack, as a view."""
        return Matrix(tuple(segment.each(lambda t: t[expert]) for segment in self.segments))

    def last_rows(self, count: int) -> "Matrix":
        """Return the last `count` rows, as a view. REQUIRES: the matrix is no stack. Raises
        WeightsError if the boundary is between rows with a common scale."""
        kept: list[Segment] = []
        for segment in reversed(self.segments):
            rows = segment.shape[-2]
            if rows > count:
                segment, rows = segment.last_rows(count), count
            kept.insert(0, segment)
            count -= rows
            if not count:
                break
        return Matrix(tuple(kept))

    def runs(self, rows: Sequence[range]) -> "Matrix":
        """Return these runs of rows, one below the other, in new memory. REQUIRES: the matrix is
        one segment, and no stack. Raises WeightsError if a run would cut rows with a common
        scale."""
        return Matrix((self.only.runs(rows),))

    def to(self, device: torch.device) -> "Matrix":
        if all(segment.device == device for segment in self.segments):
            return self
        return Matrix(tuple(segment.each(lambda t: t.to(device)) for segment in self.segments))

    def pieces(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """Yield the matrix's rows in order, dequantised to dtype, some at a time: [n, in].
        REQUIRES: the matrix is no stack."""
        for segment in self.segments:
            yield from segment.pieces(dtype)

    def dequantised(self, dtype: torch.dtype) -> Tensor:
        """Return the whole matrix [out, in], dequantised to dtype. REQUIRES: the matrix is no
        stack."""
        pieces = [*self.pieces(dtype)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
