"""Tensors that belong together: companions of a weight, stacks of modules.

Names of the tensors that belong to one weight: its values, and the scales beside them.

A linear layer's weight is `X.weight`, so its scales are `X.weight_scale_inv` and the like. Fused
experts are `X` alone, whose scales publishers name in three ways: `X_scale`, `X_weight_scale` and
`X.weight_scale`.

Tensors of several modules that are stored alike, as if each were one tensor of a stack.

A checkpoint of experts has tens of thousands of small tensors: to decide, check and convert each by
itself takes longer than to read it. Here a layer's are decided and checked as one. Only what is
alike to the last companion, dtype and dimension is taken so, so that what holds for the first holds
for all.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from torch import Tensor

from .matrix import WHOLE, Part, WeightsError
from .safetensors_files import Error, PendingChecks, StoredTensors

_WEIGHT = ".weight"
WEIGHT_SCALES = ("_scale_inv", "_scale", "_scale_2", "_global_scale")
ACTIVATION_SCALES = ("input_scale", "input_global_scale")


@dataclass(frozen=True)
class Companions:
    """Of the weight of a name, among the tensors that exist."""

    weight: str
    existing: Container[str]

    def candidates(self) -> list[str]:
        """All names that a tensor of the weight or of its input may have, in one order."""
        names = [name for stem in self._stems() for name in (stem, f"{stem}_packed")]
        for suffix in WEIGHT_SCALES:
            names.extend(self._named(suffix))
        return [*names, *self._inputs()]

    def values(self) -> str | None:
        """The tensor that holds the values themselves."""
        for stem in self._stems():
            for name in (stem, f"{stem}_packed"):
                if name in self.existing:
                    return name
        return None

    def scale(self, suffix: str) -> str | None:
        """suffix: one of WEIGHT_SCALES."""
        return next((name for name in self._named(suffix) if name in self.existing), None)

    def scales(self) -> Iterator[str]:
        """All that exist of the weight's."""
        for suffix in WEIGHT_SCALES:
            yield from (name for name in self._named(suffix) if name in self.existing)

    def activation_scales(self) -> Iterator[str]:
        """All that exist of its input's."""
        return (name for name in self._inputs() if name in self.existing)

    def expected(self, suffix: str) -> str:
        """The name that a scale would most likely have, for messages."""
        return self._stems()[0] + suffix

    def _named(self, suffix: str) -> Iterator[str]:
        return (stem + suffix for stem in self._stems())

    def _inputs(self) -> Iterator[str]:
        module = self.weight.removesuffix(_WEIGHT)
        for scale in ACTIVATION_SCALES:
            yield f"{module}.{scale}"
            yield f"{module}_{scale}"

    def _stems(self) -> tuple[str, ...]:
        if self.weight.endswith(_WEIGHT):
            return (self.weight,)
        return (self.weight, f"{self.weight}_weight", f"{self.weight}.weight")


FoundAgain = Callable[[], WeightsError | None]
"""What is wrong with one of the modules, looked at one by one."""


class StackedTensors:
    """As `StoredTensors`, by the names of the first module, with one more dimension in front."""

    def __init__(
        self, tensors: StoredTensors, columns: Mapping[str, Sequence[str]], again: FoundAgain
    ) -> None:
        """columns: of each tensor of the first module, those of all modules."""
        self.checks = StackedChecks(tensors.checks, again)
        self._tensors = tensors
        self._columns = columns

    @classmethod
    def of(cls, tensors: StoredTensors, weights: Sequence[str], again: FoundAgain) -> Self | None:
        """weights: as published, of which the first is there. None where they are not alike."""
        first, *others = (Companions(weight, tensors).candidates() for weight in weights)
        there = [place for place, name in enumerate(first) if name in tensors]
        for names in others:
            if [place for place, name in enumerate(names) if name in tensors] != there:
                return None
        columns = {first[place]: (first[place], *(n[place] for n in others)) for place in there}
        if not all(tensors.are_alike(column) for column in columns.values()):
            return None
        return cls(tensors, columns, again)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def path(self, name: str) -> Path:
        """Of the file that holds the first one's."""
        return self._tensors.path(name)

    def dtype(self, name: str) -> str:
        return self._tensors.dtype(name)

    def shape(self, name: str) -> tuple[int, ...]:
        return (len(self._columns[name]), *self._tensors.shape(name))

    def read(self, name: str, part: Part = WHOLE) -> Tensor:
        """Contiguous, in new memory. REQUIRES: all of it."""
        assert part == WHOLE, "a stack is read whole"
        return self._tensors.read_stack(self._columns[name])

    def took(self, name: str) -> None:
        for each in self._columns[name]:
            self._tensors.took(each)


@dataclass(frozen=True)
class StackedChecks:
    """As `PendingChecks`; an error names the module that it is of."""

    checks: PendingChecks
    again: FoundAgain

    def finite(self, scales: Tensor, error: Error) -> None:
        self.checks.finite(scales, lambda: self.again() or error())

    def without_nan(self, codes: Tensor, error: Error) -> None:
        self.checks.without_nan(codes, lambda: self.again() or error())
