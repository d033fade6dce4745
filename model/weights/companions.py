"""Names of the tensors that belong to one weight: its values, and the scales beside them.

A linear layer's weight is `X.weight`, so its scales are `X.weight_scale_inv` and the like. Fused
experts are `X` alone, whose scales publishers name in three ways: `X_scale`, `X_weight_scale` and
`X.weight_scale`.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass

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
