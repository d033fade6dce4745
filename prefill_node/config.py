"""What shapes a prefill node beside its engine and its server."""

from dataclasses import dataclass

from ..engine.config import option
from ..transfer.transports.choice import KINDS
from ..transfer.wire_settings import PRECISIONS, WireSettings


@dataclass(frozen=True)
class PrefillConfig:
    name: str = option("prefill", "how decode nodes and their clients see this node")
    transport: str = option(
        "auto", "how bytes move: auto takes peer_copy on one host's GPUs, else nixl", KINDS
    )
    layers_per_window: int | None = option(
        None, "layers that are sent together; none: as many as suit the link's measured speed"
    )
    etcd: str = option("", "etcd's URL, as http://127.0.0.1:2379, to register there; none: do not")
    etcd_prefix: str = option("/tasuki/prefill/", "the key is this and the name")
    advertise: str = option("", "HOST:PORT under which decode nodes reach this one; none: bind's")
    lease_seconds: float = option(
        2.0, "posting for a decode node stops that long after it last answered a heartbeat"
    )
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
        if self.layers_per_window is not None and self.layers_per_window < 1:
            raise ValueError(f"layers_per_window must be at least 1, not {self.layers_per_window}")
        if not self.lease_seconds > 0:
            raise ValueError(f"lease_seconds must be positive, not {self.lease_seconds}")
        # Raises on what it cannot be.
        _ = self.wire

    @property
    def wire(self) -> WireSettings:
        return WireSettings.named(self.wire_kv, self.wire_state, self.wire_staging_mib)
