"""Settings of a decode node, without those of its engine and server, and the deadlines of
hand-overs."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from tasuki.server.discovery.etcd_access import EtcdAccess
from tasuki.server.discovery.membership import (
    FileMembership,
    FixedMembership,
    Membership,
    check_target,
)
from tasuki.transfer.lifecycle.deadlines import PullSenderDeadlines, ReceiverDeadlines
from tasuki.transfer.peer_values import LONGEST_LEASE, LONGEST_NAME, is_name
from tasuki.transfer.settings import TRANSPORTS, WireOptions
from tasuki.utils.options import Headings, MostAsked, option
from tasuki.utils.urls import check_url


@dataclass(frozen=True)
class DecodeConfig(WireOptions):
    MOST_ASKED: ClassVar[MostAsked] = {
        "name": "name of this node for peers and pages",
        "prefill": "prefill nodes; none: this node computes prompts",
        "prefill_ca": "CA of prefill nodes' certificates",
        "etcd": "etcd with the prefill nodes",
    }
    HEADINGS: ClassVar[Headings] = {
        "Prefill nodes": ("prefill", "prefill_file", "etcd", "etcd_prefix", "prefill_ca"),
        "Hand-over": (
            *("name", "transport", "layers_per_window", "lease_seconds"),
            *("wire_kv", "wire_state", "wire_staging_mib"),
        ),
        "Life": ("other_role_config",),
    }

    name: str = option("decode", "how prefill nodes see this node")
    transport: str = option(
        "auto", "how bytes move: auto takes peer_copy on one host's GPUs, else nixl", TRANSPORTS
    )
    prefill: str = option("", "prefill nodes, HOST:PORT separated by commas; none: prefill here")
    prefill_file: str = option(
        "", "file with a prefill node's HOST:PORT a line; nodes come and go as it changes"
    )
    etcd: str = option("", "etcd's URL, as http://127.0.0.1:2379: prefill nodes register there")
    etcd_prefix: str = option("/tasuki/prefill/", "prefix of the keys of prefill nodes")
    prefill_ca: str = option(
        "",
        "PEM file: prefill nodes must show a certificate signed by these; none: plain text, on "
        "loopback alone unless insecure",
    )
    layers_per_window: int | None = option(
        None,
        "number of layers in one layer chunk of a pull; not given: by the link's measured speed",
    )
    lease_seconds: float = option(
        4.0,
        "seconds from a prefill node's last confirmed heartbeat until writes of its pull stop",
    )
    other_role_config: str = option(
        "", "TOML file of this node's settings as a prefill node, for a role change"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.etcd:
            check_url("etcd", self.etcd, "http://127.0.0.1:2379")
        if self.layers_per_window is not None and self.layers_per_window < 1:
            raise ValueError(f"layers_per_window must be at least 1, not {self.layers_per_window}")
        if not 0 < self.lease_seconds <= LONGEST_LEASE:
            raise ValueError(
                f"lease_seconds must be positive, {LONGEST_LEASE:g} at most, "
                f"not {self.lease_seconds}"
            )
        if sum(map(bool, (self.prefill, self.prefill_file, self.etcd))) > 1:
            raise ValueError("prefill, prefill_file and etcd exclude each other: give one of them")
        if not is_name(self.name):
            raise ValueError(f"name must be at most {LONGEST_NAME} printable characters")
        if not self.etcd_prefix:
            raise ValueError(
                "etcd_prefix must not be empty: leave it out, or name a folder of keys"
            )
        for target in self.targets:
            check_target(target, "prefill")

    def membership(self, access: EtcdAccess) -> Membership:
        """Return the source of prefill nodes named by the settings: etcd if set, else the file,
        else the list. access: access to etcd. Raises EtcdAccessError."""
        if self.etcd:
            # This loads aiohttp, and no command line should wait for that.
            from tasuki.server.discovery.etcd import Etcd
            from tasuki.server.discovery.registration import EtcdMembership

            access.check(self.etcd)
            return EtcdMembership(lambda: Etcd(self.etcd, access), self.etcd_prefix)
        if self.prefill_file:
            return FileMembership(Path(self.prefill_file))
        return FixedMembership(self.targets)

    @property
    def targets(self) -> list[str]:
        """Return the prefill nodes listed by the settings, as HOST:PORT; empty entries are skipped.
        Others may be discovered later."""
        return [target.strip() for target in self.prefill.split(",") if target.strip()]


@dataclass(frozen=True)
class HandoverSettings:
    """Limits for hand-overs on a decode node, in seconds unless said otherwise.

    silence: heartbeat timeout of a prefill node; shorter than the lease, or else transfers would be
    stopped one by one before. connect: limit of one attempt to connect. retry_first, retry_last:
    first and longest pause between attempts; the pause doubles each time. landing: limit from a
    transfer's final status until its last layer chunk arrives. acknowledge: limit of one abort's
    reply. write: limit for the prefill node to take one message of a transfer. patience: limit for
    a lost transfer to be fenced; beyond it the connection is given up, so its lease runs out.
    attempts: number of prefill nodes tried for one prompt before this node prefills it. deadlines,
    pull: longest time without progress in each state, of transfers and of pulls.
    """

    silence: float = 3.0
    connect: float = 5.0
    retry_first: float = 0.1
    retry_last: float = 2.0
    landing: float = 5.0
    acknowledge: float = 3.0
    write: float = 10.0
    patience: float = 10.0
    attempts: int = 2
    deadlines: ReceiverDeadlines = field(default_factory=ReceiverDeadlines)
    pull: PullSenderDeadlines = field(default_factory=PullSenderDeadlines)
