"""Related tensors: companions of a weight, and stacks of modules.

Companions: names of the tensors of one weight: its values and their scales. A linear layer's weight
is `X.weight`, so its scales are `X.weight_scale_inv` and the like. Fused experts are `X` alone.
Publishers name their scales in three ways: `X_scale`, `X_weight_scale` and `X.weight_scale`.

StackedTensors: tensors of several modules stored alike, as if each were one tensor of a stack. A
checkpoint of experts has tens of thousands of small tensors. Deciding, checking and converting each
by itself takes longer than reading it. Here all experts of a layer are handled together. A stack
needs equal companions, dtypes and shapes in all modules. So the result for the first module holds
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
    """Names of the tensors of one weight (values and scales) among the names in `existing`."""

    weight: str
    existing: Container[str]

    def candidates(self) -> list[str]:
        """Return all possible names of the weight's tensors and of its input's scales, in a fixed
        order."""
        names = [name for stem in self._stems() for name in (stem, f"{stem}_packed")]
        for suffix in WEIGHT_SCALES:
            names.extend(self._named(suffix))
        return [*names, *self._inputs()]

    def values(self) -> str | None:
        """Return the name of the tensor with the weight's values; None if it does not exist."""
        for stem in self._stems():
            for name in (stem, f"{stem}_packed"):
                if name in self.existing:
                    return name
        return None

    def scale(self, suffix: str) -> str | None:
        """Return the name of the weight's scale with this suffix; None if it does not exist.
        suffix: one of WEIGHT_SCALES."""
        return next((name for name in self._named(suffix) if name in self.existing), None)

    def scales(self) -> Iterator[str]:
        """Return the names of the weight's existing scales."""
        for suffix in WEIGHT_SCALES:
            yield from (name for name in self._named(suffix) if name in self.existing)

    def activation_scales(self) -> Iterator[str]:
        """Return the names of the existing scales for the weight's input activations."""
        return (name for name in self._inputs() if name in self.existing)

    def expected(self, suffix: str) -> str:
        """Return the most likely name of a missing scale, for error messages."""
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
"""Function to check the stacked modules one by one, returning the first error; None without an
error."""


class StackedTensors:
    """The tensors of several alike modules, such as experts, as stacks. It is used like
    `StoredTensors`, with the names of the first module's tensors. Shapes have one more dimension in
    front."""

    def __init__(
        self, tensors: StoredTensors, columns: Mapping[str, Sequence[str]], again: FoundAgain
    ) -> None:
        """columns: names of the tensor in all modules, by its name in the first module. again:
        checks the modules one by one to name the one at fault."""
        self.checks = StackedChecks(tensors.checks, again)
        self._tensors = tensors
        self._columns = columns

    @classmethod
    def of(cls, tensors: StoredTensors, weights: Sequence[str], again: FoundAgain) -> Self | None:
        """Return the stack of the weights' tensors; None if the modules have different tensors,
        dtypes or shapes. weights: published names of the weights. REQUIRES: the first weight
        exists."""
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
        """Return the path of the file with the first module's tensor."""
        return self._tensors.path(name)

    def dtype(self, name: str) -> str:
        return self._tensors.dtype(name)

    def shape(self, name: str) -> tuple[int, ...]:
        return (len(self._columns[name]), *self._tensors.shape(name))

    def read(self, name: str, part: Part = WHOLE) -> Tensor:
        """Return the named tensor of all modules as one stack, contiguous, in new memory. REQUIRES:
        `part` is empty."""
        assert part == WHOLE, "a stack is read whole"
        return self._tensors.read_stack(self._columns[name])

    def took(self, name: str) -> None:
        for each in self._columns[name]:
            self._tensors.took(each)


@dataclass(frozen=True)
class StackedChecks:
    """Checks of stacked values, added to `PendingChecks`. An error names the module at fault."""

    checks: PendingChecks
    again: FoundAgain

    def finite(self, scales: Tensor, error: Error) -> None:
        self.checks.finite(scales, lambda: self.again() or error())

    def without_nan(self, codes: Tensor, error: Error) -> None:
        self.checks.without_nan(codes, lambda: self.again() or error())
