"""What an operator sets of the wire: how exact it is, and how much memory encoding may take.

Both nodes of a pair must have the same precision.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tasuki.utils.config.options import option

from .precision import Precision, WirePrecision

if TYPE_CHECKING:
    # It loads torch, which no command line waits for.
    from .wire_layout import WireUnits

PRECISIONS = tuple(precision.value for precision in Precision)

_LEAST_CELLS = 2
_LEAST_SLABS_LEFT = 4
_LARGEST_SHARE = 8
MIB = 2**20


@dataclass(frozen=True)
class WireSettings:
    """staging_mib: of the arena, kept back for encoded windows on their way out; at most an eighth
    of it is taken, and at least what two windows need."""

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

    def slabs_kept_back(self, units: "WireUnits", slabs: int) -> int:
        """Of an arena of so many. Raises WireError where too few are left."""
        from .wire_layout import WireError

        if self.precision.exact:
            return 0
        slab = units.layout.slab_bytes
        wanted = min(-(-self.staging_mib * MIB // slab), slabs // _LARGEST_SHARE)
        kept = max(wanted, -(-_LEAST_CELLS * units.largest_encoded // slab))
        if slabs - kept < _LEAST_SLABS_LEFT:
            raise WireError(
                f"the arena has {slabs} slabs, of which a wire that is not exact keeps {kept} "
                f"back, and {_LEAST_SLABS_LEFT} must be left: give more --arena-mib"
            )
        return kept


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
        64, "of the arena, kept back for windows on their way out where the wire is not exact"
    )

    def __post_init__(self) -> None:
        # Raises on what it cannot be.
        _ = self.wire

    @property
    def wire(self) -> WireSettings:
        return WireSettings.named(self.wire_kv, self.wire_state, self.wire_staging_mib)
