"""Operator settings of transfers: the transport, and the precision of sent KV and state.

`WirePrecision`: a precision of KV and one of recurrent state, the same on both nodes. Values only;
knows no bytes. Thread rule: immutable. Invariant: different precisions have different values of
`code`, and 0 means a wire without encoding.

`WireOptions`: the precision, and the memory for encoding. Both nodes of a pair must have the same
precision.
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
    """Precision of sent pages and states. kv: for pages. state: for states. Only parts cut by heads
    are encoded; others, such as windows, are exact, because they are small."""

    kv: Precision = Precision.EXACT
    state: Precision = Precision.EXACT

    @property
    def exact(self) -> bool:
        return self.kv is self.state is Precision.EXACT

    @property
    def code(self) -> int:
        """Return the precision as a number of four bits, sent in a chunk's notification."""
        return _CODES[self.kv] | _CODES[self.state] << _STATE_SHIFT


PRECISIONS = tuple(precision.value for precision in Precision)


@dataclass(frozen=True)
class WireSettings:
    """Settings of sent KV and state. staging_mib: MiB of the arena kept back for encoded chunks to
    be sent. At most an eighth of the arena is taken, and at least the size of two chunks
    (slabs_kept_back())."""

    precision: WirePrecision = field(default_factory=WirePrecision)
    staging_mib: int = 64

    @staticmethod
    def named(kv: str, state: str, staging_mib: int) -> "WireSettings":
        """Make settings from names of precisions. Raises ValueError on a name not in PRECISIONS, or
        on less than 1 MiB."""
        for name, value in (("wire_kv", kv), ("wire_state", state)):
            if value not in PRECISIONS:
                raise ValueError(f"{name} must be one of {', '.join(PRECISIONS)}, not {value!r}")
        if staging_mib < 1:
            raise ValueError(f"wire_staging_mib must be at least 1, not {staging_mib}")
        return WireSettings(WirePrecision(Precision(kv), Precision(state)), staging_mib)


@dataclass(frozen=True)
class WireOptions:
    """Base of a node's own config, with the options for transport and precision. Raises ValueError
    on an invalid value."""

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
        # Raises on invalid values.
        _ = self.wire

    @property
    def wire(self) -> WireSettings:
        return WireSettings.named(self.wire_kv, self.wire_state, self.wire_staging_mib)
