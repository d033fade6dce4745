"""Settings of a prefill node, without those of its engine and its server."""

from dataclasses import dataclass
from typing import ClassVar

from tasuki.server.bind import read_address
from tasuki.server.discovery.membership import check_target
from tasuki.transfer.peer_values import LONGEST_LEASE, LONGEST_NAME, is_name
from tasuki.transfer.settings import TRANSPORTS, WireOptions
from tasuki.utils.options import Headings, MostAsked, option
from tasuki.utils.urls import check_url


@dataclass(frozen=True)
class PrefillConfig(WireOptions):
    MOST_ASKED: ClassVar[MostAsked] = {
        "name": "name of this node for peers and pages",
        "handover_bind": "HOST:PORT of hand-overs; none: as --bind",
        "advertise": "HOST:PORT of this node for decode nodes",
        "etcd": "etcd for this node's registration",
    }
    HEADINGS: ClassVar[Headings] = {
        "Addresses": ("handover_bind", "advertise", "etcd", "etcd_prefix"),
        "Hand-over": (
            *("name", "transport", "layers_per_window", "lease_seconds"),
            *("wire_kv", "wire_state", "wire_staging_mib"),
        ),
        "Life": ("other_role_config",),
    }

    name: str = option("prefill", "how decode nodes and their clients see this node")
    transport: str = option(
        "auto", "how bytes move: auto takes peer_copy on one host's GPUs, else nixl", TRANSPORTS
    )
    handover_bind: str = option(
        "",
        "HOST:PORT of a server for decode nodes alone; none: bind serves them too",
    )
    layers_per_window: int | None = option(
        None, "number of layers in one layer chunk; none: by the link's measured speed"
    )
    etcd: str = option("", "etcd's URL, as http://127.0.0.1:2379, to register there; none: do not")
    etcd_prefix: str = option("/tasuki/prefill/", "the key is this and the name")
    advertise: str = option("", "HOST:PORT of this node for decode nodes; none: as bound")
    lease_seconds: float = option(
        4.0, "seconds from a decode node's last heartbeat answer until writes to it stop"
    )
    other_role_config: str = option(
        "", "TOML file of this node's settings as a decode node, for a role change"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.etcd:
            check_url("etcd", self.etcd, "http://127.0.0.1:2379")
        if not self.etcd_prefix:
            raise ValueError(
                "etcd_prefix must not be empty: leave it out, or name a folder of keys"
            )
        if self.handover_bind:
            read_address("handover_bind", self.handover_bind)
        if self.advertise:
            check_target(self.advertise, "advertise")
        if self.layers_per_window is not None and self.layers_per_window < 1:
            raise ValueError(f"layers_per_window must be at least 1, not {self.layers_per_window}")
        if not is_name(self.name):
            raise ValueError(f"name must be at most {LONGEST_NAME} printable characters")
        if not 0 < self.lease_seconds <= LONGEST_LEASE:
            raise ValueError(
                f"lease_seconds must be positive, {LONGEST_LEASE:g} at most, "
                f"not {self.lease_seconds}"
            )
