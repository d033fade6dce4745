"""What an operator sets of transfers: the transport, and how exact KV and state travel.

`WirePrecision`: How exact what travels is: a precision of KV and one of recurrent state, the same
on both nodes.
Values only; knows no bytes. Thread rule: immutable. Invariant: `code` of two precisions is equal
only where they are, and 0 says that every byte travels as it lies.

`WireOptions`: What an operator sets of the wire: how exact it is, and how much memory encoding may
take.
Both nodes of a pair must have the same precision.
"""

from dataclasses import dataclass, field
from enum import Enum

from tasuki.utils.options import option

TRANSPORTS = ("auto", "nixl", "peer_copy")


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


PRECISIONS = tuple(precision.value for precision in Precision)


@dataclass(frozen=True)
class WireSettings:
    """staging_mib: of the arena, kept back for encoded windows on their way out; at most an eighth
    of it is taken, and at least what two windows need (slabs_kept_back())."""

    precision: WirePrecision = field(default_factory=WirePrecision)
    staging_mib: int = 64

    @staticmethod
    def named(kv: str, state: str, staging_mib: int) -> "WireSettings":
        """Raises ValueError on a name that is not of PRECISIONS, or on no memory."""
        for name, value in (("wire_kv", kv), ("wire_state", state)):
            if value not in PRECISIONS:
                raise ValueError(f"{name} must be one of {', '.join(PRECISIONS)}, not {value!r}")
        if staging_mib < 1:
            raise ValueError(f"wire_staging_mib must be at least 1, not {staging_mib}")
        return WireSettings(WirePrecision(Precision(kv), Precision(state)), staging_mib)


@dataclass(frozen=True)
class WireOptions:
    """What a node's own config begins with. Raises ValueError on what it cannot be."""

    wire_kv: str = option(
        "exact",
        "keys and values as they travel: fewer bytes lose digits; both nodes must say the same",
        PRECISIONS,
    )
    wire_state: str = option(
        "exact",
        "recurrent state as it travels: fewer bytes lose digits; both nodes must say the same",
        PRECISIONS,
    )
    wire_staging_mib: int = option(
        64, "MiB of the arena for encoded data on its way out, if the wire format is lossy"
    )

    def __post_init__(self) -> None:
        # Raises on what it cannot be.
        _ = self.wire

    @property
    def wire(self) -> WireSettings:
        return WireSettings.named(self.wire_kv, self.wire_state, self.wire_staging_mib)
