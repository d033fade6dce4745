"""A matrix of a model as operators take it: segments stacked along `out`, each as it was stored.

Projections of one input are one matrix. Parts that were published plain are one tensor; quantised
ones keep a segment each, since scales of different tensors must not be mixed. Immutable.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from .part import WeightsError
from .segment import Kind, Plain, Segment


def named_kinds(kinds: Iterable[Kind]) -> str:
    return "+".join(sorted({kind.value for kind in kinds}))


@dataclass(frozen=True)
class Matrix:
    """[..., out, in]. Leading dimensions, [experts], are the same of all segments."""

    segments: tuple[Segment, ...]

    @staticmethod
    def of(values: Tensor) -> "Matrix":
        """Plain numbers."""
        return Matrix((Plain(values),))

    @staticmethod
    def fused(matrices: "Sequence[Matrix]") -> "Matrix":
        """Their rows one below the other."""
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
        """[experts, out, in]. names: of each, for messages. Raises WeightsError where they are
        stored in different ways."""
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
        """How each segment is stored, in words."""
        return ", ".join(" ".join(segment.stored_as) for segment in self.segments)

    @property
    def nbytes(self) -> int:
        return sum(segment.nbytes for segment in self.segments)

    @property
    def is_on_cpu(self) -> bool:
        return self.segments[0].device.type == "cpu"

    @property
    def is_plain(self) -> bool:
        """Whether it is one tensor of plain numbers."""
        return len(self.segments) == 1 and isinstance(self.segments[0], Plain)

    @property
    def plain(self) -> Tensor:
        """All of it as one tensor. Raises WeightsError where any of it is quantised: kernels that
        read plain numbers would read codes as if they were weights."""
        if len(self.segments) == 1 and isinstance(self.segments[0], Plain):
            return self.segments[0].values
        raise WeightsError(
            f"weights are stored as {named_kinds(self.kinds)} and this kernel reads plain numbers; "
            "serve the checkpoint with --device cpu, or convert it to BF16"
        )

    @property
    def only(self) -> Segment:
        """Its one segment. Raises WeightsError where there are several: kernels of experts read
        one."""
        if len(self.segments) > 1:
            raise WeightsError(
                f"gate and up of experts are stored apart, as {self.layout}; quantise them alike, "
                "or serve the checkpoint with --device cpu"
            )
        return self.segments[0]

    def __getitem__(self, expert: int) -> "Matrix":
        """One of a stack; a view."""
        return Matrix(tuple(segment.each(lambda t: t[expert]) for segment in self.segments))

    def last_rows(self, count: int) -> "Matrix":
        """The last `count` rows, a view. REQUIRES: no stack. Raises WeightsError where they would
        begin inside of what has one scale."""
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

    def to(self, device: torch.device) -> "Matrix":
        if all(segment.device == device for segment in self.segments):
            return self
        return Matrix(tuple(segment.each(lambda t: t.to(device)) for segment in self.segments))

    def pieces(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """Its rows in order as plain numbers [n, in], few at a time. REQUIRES: no stack."""
        for segment in self.segments:
            yield from segment.pieces(dtype)

    def dequantised(self, dtype: torch.dtype) -> Tensor:
        """[out, in], as long as it is wanted. REQUIRES: no stack."""
        pieces = [*self.pieces(dtype)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
