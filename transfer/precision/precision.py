"""How exact what travels is: a precision of KV and one of recurrent state, the same on both nodes.

Values only; knows no bytes. Thread rule: immutable. Invariant: `code` of two precisions is equal
only where they are, and 0 says that every byte travels as it lies.
"""

from dataclasses import dataclass
from enum import Enum


class Precision(Enum):
    EXACT = "exact"
    BF16 = "bf16"
    FP8 = "fp8"


_CODES = {Precision.EXACT: 0, Precision.BF16: 1, Precision.FP8: 2}
_STATE_SHIFT = 2


@dataclass(frozen=True)
class WirePrecision:
    """kv: of keys and values. state: of the recurrent state; conv state is always exact, since it
    is small."""

    kv: Precision = Precision.EXACT
    state: Precision = Precision.EXACT

    @property
    def exact(self) -> bool:
        return self.kv is self.state is Precision.EXACT

    @property
    def code(self) -> int:
        """What a window's notification carries of it, four bits."""
        return _CODES[self.kv] | _CODES[self.state] << _STATE_SHIFT
