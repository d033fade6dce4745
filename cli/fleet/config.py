"""The settings of `tasuki dashboard`, and of requests for nodes' metrics.

`PollLimits` and `Credentials` hold the poll interval, timeout, and key. Addresses of nodes' HTTP
servers may come from another host, so they are checked. Pure.
"""

import re
import ssl
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from tasuki.dashboard.fleet.callers import Targets
from tasuki.server.auth.callers import Access
from tasuki.server.bind import is_loopback, join_address
from tasuki.server.discovery.etcd_access import HTTP_PREFIX, EtcdAccess
from tasuki.server.discovery.membership import FileMembership, FixedMembership, Membership
from tasuki.utils.options import Headings, option
from tasuki.utils.tls import ServerTls


@dataclass(frozen=True)
class PollLimits:
    """Limits on polls of nodes. every_seconds: seconds from one answer to the next poll.
    answer_seconds: timeout of a whole answer. at_a_time: largest number of polls in flight."""

    every_seconds: float = 5.0
    answer_seconds: float = 3.0
    answer_bytes: int = 4 << 20
    at_a_time: int = 64


@dataclass(frozen=True)
class Credentials:
    """The poller's access to nodes. key: API key sent to every node; empty for none. tls: poll
    nodes by HTTPS and check their certificates against it; None: poll by HTTP. insecure: the key
    may leave this host in plain text."""

    key: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    insecure: bool = False


_ADDRESS = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\]):(\d{1,5})")


class AddressError(ValueError):
    """An address is rejected and not fetched. The message names the address and the fix."""


def check_address(address: str) -> str:
    """Return `address` unchanged. Raises AddressError if it is not HOST:PORT, because any other URL
    could lead elsewhere."""
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[2]) <= 65535:
        raise AddressError(f"{address[:120]!r} is not HOST:PORT: write for example 127.0.0.1:8000")
    return address


def is_here(address: str) -> bool:
    """Return True if the address is loopback (this host). REQUIRES: check_address()."""
    return is_loopback(address.rpartition(":")[0].strip("[]"))


class FleetConfigError(ValueError):
    """A file named by a setting cannot be used. The message names the file and the fix."""


@dataclass(frozen=True)
class FleetConfig:
    HEADINGS: ClassVar[Headings] = {
        "Nodes": (
            "nodes",
            "nodes_file",
            "etcd",
            "etcd_prefix",
            "etcd_ca",
            "etcd_login",
            "api_key_file",
            "ca",
        ),
        "Asking": ("every_seconds", "answer_timeout", "answer_mib", "at_a_time"),
        "Targets": ("ttft_target_ms", "itl_target_ms"),
        "The page": (
            *("host", "port", "page_key_file", "allowed_hosts", "tls_cert", "tls_key", "insecure"),
        ),
    }

    nodes: str = option("", "nodes' HTTP servers, HOST:PORT separated by commas")
    nodes_file: str = option(
        "", "file with a node's HTTP HOST:PORT a line; nodes come and go as it changes"
    )
    etcd: str = option(
        "",
        "etcd's URL, as http://127.0.0.1:2379: nodes with --http-etcd register there",
        unit="URL",
    )
    etcd_prefix: str = option(HTTP_PREFIX, "prefix of the keys of nodes' HTTP servers")
    etcd_ca: str = option(
        "", "PEM file: etcd must show a certificate signed by these; none: by the system's"
    )
    etcd_login: str = option(
        "", "file with USER:PASSWORD for etcd; none: it asks for no user", unit="FILE"
    )
    api_key_file: str = option("", "file with the key for every node; the scope metrics is enough")
    ca: str = option("", "PEM file of a CA: ask nodes by HTTPS and check them against it")
    every_seconds: float = option(5.0, "from a node's answer to the next question")
    answer_timeout: float = option(3.0, "how long a node may take to answer")
    answer_mib: int = option(4, "most MiB of a node's answer")
    at_a_time: int = option(64, "nodes asked at a time")
    ttft_target_ms: float = option(2000.0, "promised milliseconds to the first token")
    itl_target_ms: float = option(100.0, "promised milliseconds for each later token")
    host: str = option("127.0.0.1", "HOST of the page", unit="HOST")
    port: int = option(8090, "port of the page; 0 picks one", unit="PORT")
    page_key_file: str = option("", "file with the key for readers of the page")
    allowed_hosts: str = option(
        "", "comma-separated host names of the page besides loopback and its own"
    )
    tls_cert: str = option("", "PEM file: the certificate chain of the page; none: plain text")
    tls_key: str = option("", "PEM file: the private key of tls_cert", unit="FILE")
    insecure: bool = option(
        False, "off loopback, serve the page and show nodes the key in plain text"
    )

    def __post_init__(self) -> None:
        if sum(map(bool, (self.nodes, self.nodes_file, self.etcd))) != 1:
            raise ValueError("give one of --nodes, --nodes-file and --etcd")
        if self.nodes and not self._listed:
            raise ValueError(f"nodes {self.nodes!r} names no node: give HOST:PORT, comma-separated")
        if not self.etcd_prefix:
            raise ValueError("etcd_prefix must not be empty: leave it out, or name a folder")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key go together: give both or neither")
        for name in ("every_seconds", "answer_timeout", "ttft_target_ms", "itl_target_ms"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be over 0, not {getattr(self, name)}")
        for name, most in (("answer_mib", 64), ("at_a_time", 1024)):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be in [1, {most}], not {getattr(self, name)}")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be in [0, 65535], not {self.port}")
        for address in self._listed:
            check_address(address)

    @property
    def _listed(self) -> list[str]:
        return [address.strip() for address in self.nodes.split(",") if address.strip()]

    @property
    def bind(self) -> str:
        return join_address(self.host.strip("[]"), self.port)

    @property
    def targets(self) -> Targets:
        return Targets(self.ttft_target_ms / 1000, self.itl_target_ms / 1000)

    @property
    def limits(self) -> PollLimits:
        size = self.answer_mib << 20
        return PollLimits(self.every_seconds, self.answer_timeout, size, self.at_a_time)

    @property
    def credentials(self) -> Credentials:
        """Return the credentials for polling nodes. Raises FleetConfigError."""
        try:
            tls = ssl.create_default_context(cafile=self.ca) if self.ca else None
        except OSError as error:
            raise FleetConfigError(
                f"ca {self.ca} cannot be used: give a PEM file of the nodes' CA"
            ) from error
        return Credentials(_key("api_key_file", self.api_key_file), tls, self.insecure)

    @property
    def access(self) -> Access:
        """Return the access rules for readers of the page. Raises FleetConfigError."""
        return Access(
            tls=ServerTls(self.tls_cert, self.tls_key) if self.tls_cert else None,
            api_key=_key("page_key_file", self.page_key_file),
            insecure=self.insecure,
            allowed_hosts=tuple(filter(None, map(str.strip, self.allowed_hosts.split(",")))),
        )

    async def members(self) -> AsyncGenerator[tuple[str, ...], None]:
        """Yield the addresses of all nodes, now and after each change. Invalid addresses are left
        out."""
        async for addresses in self._membership.changes():
            yield tuple(filter(_is_address, addresses))

    @property
    def _membership(self) -> Membership:
        if self.etcd:
            # It loads aiohttp, and would delay every command line.
            from tasuki.server.discovery.etcd import Etcd
            from tasuki.server.discovery.registration import EtcdMembership

            access = EtcdAccess.load(self.etcd_ca, self.etcd_login)
            access.check(self.etcd)
            return EtcdMembership(lambda: Etcd(self.etcd, access), self.etcd_prefix)
        if self.nodes_file:
            return FileMembership(Path(self.nodes_file))
        return FixedMembership(self._listed)


def _is_address(address: str) -> bool:
    try:
        check_address(address)
    except AddressError:
        return False
    return True


def _key(setting: str, file: str) -> str:
    """Return the key: the one word of `file`, or an empty string without a file. setting: the
    file's flag, for errors."""
    if not file:
        return ""
    try:
        words = Path(file).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise FleetConfigError(
            f"{setting} {file} cannot be read: give a file with a key"
        ) from error
    if len(words) != 1 or not words[0].isascii():
        raise FleetConfigError(f"{setting} {file} holds no key: write the key alone into it")
    return words[0]
