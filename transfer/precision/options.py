"""The precision of the wire, as flags, which must be equal on both nodes of a pair."""

from dataclasses import dataclass

from tasuki.utils.config.options import option

from .settings import PRECISIONS, WireSettings


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
