"""The settings of `tasuki serve` alone: its HTTP address, its name, and those of --dry-run.

HttpAddress is the address of the HTTP API: by default port 8000 of loopback, as in vLLM.
"""

import socket
from dataclasses import dataclass
from typing import ClassVar

from tasuki.model.quantise.format_names import SERVED_ON_GPUS
from tasuki.server.bind import BindError, join_address
from tasuki.transfer.peer_values import LONGEST_NAME, is_name
from tasuki.utils.options import Headings, MostAsked, option

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000


@dataclass(frozen=True)
class HttpAddress:
    MOST_ASKED: ClassVar[MostAsked] = {
        "host": f"host of HTTP, without --http-bind; not given: {DEFAULT_HOST}",
        "port": f"port of HTTP, without --http-bind; not given: {DEFAULT_PORT}",
    }
    HEADINGS: ClassVar[Headings] = {"Addresses": ("host", "port", "no_http")}

    host: str | None = option(
        None, f"HOST of the HTTP API, for --http-bind; not given: {DEFAULT_HOST}", unit="HOST"
    )
    port: int | None = option(
        None,
        f"port of the HTTP API; 0: any free one; not given: {DEFAULT_PORT}, or another if "
        f"{DEFAULT_PORT} is taken",
        unit="PORT",
    )
    no_http: bool = option(False, "serve gRPC alone")

    def __post_init__(self) -> None:
        if self.port is not None and not 0 <= self.port <= 65535:
            raise ValueError(f"port must be in [0, 65535], not {self.port}")

    def bind(self, http_bind: str) -> str:
        """Return HOST:PORT for the HTTP server; empty for no HTTP server. http_bind: address as
        configured; empty: take host and port, or their defaults. Raises BindError if http_bind and
        the other flags conflict."""
        if self.no_http:
            asked = {"http_bind": http_bind or None, "host": self.host, "port": self.port}
            given = " and ".join(name for name, value in asked.items() if value is not None)
            if given:
                raise BindError(f"no_http excludes {given}: leave it out, or {given}")
            return ""
        if not http_bind:
            host = self.host or DEFAULT_HOST
            port = _default_port(host) if self.port is None else self.port
            return join_address(host.strip("[]"), port)
        if self.host is not None or self.port is not None:
            raise BindError("http_bind has the host and port: give it, or --host and --port")
        return http_bind


def _default_port(host: str) -> int:
    """Return DEFAULT_PORT, or 0 (any free port) if DEFAULT_PORT is taken on `host`. The user did
    not ask for this port, so a taken one is no error."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, DEFAULT_PORT))
        except OSError:
            return 0
    return DEFAULT_PORT


@dataclass(frozen=True)
class ServeConfig:
    HEADINGS: ClassVar[Headings] = {"Addresses": ("name",)}
    MOST_ASKED: ClassVar[MostAsked] = {"name": "name of this node, on pages and in the fleet"}

    name: str = option("serve", "how pages, metrics and the fleet show this node")

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise ValueError(f"name must be at most {LONGEST_NAME} printable characters")


# Total memory reported by the driver, MiB.
GPUS = {"h100": 81559, "h200": 143771, "b200": 183359}


@dataclass(frozen=True)
class DryRunConfig:
    HEADINGS: ClassVar[Headings] = {"Memory and batches": ("dry_run", "gpu", "quantization")}

    dry_run: bool = option(False, "print the memory plan and exit; --model may be a published name")
    gpu: str = option(
        "",
        f"GPU of the plan: {', '.join(GPUS)} or MiB; default: this machine's free memory, or all "
        "of these without a GPU",
    )
    quantization: str = option(
        "",
        "weight format of the plan, if --model is a published name; not given: dtype",
        ("", *SERVED_ON_GPUS),
    )

    def __post_init__(self) -> None:
        if self.quantization and not self.dry_run:
            raise ValueError(
                f"quantization is {self.quantization}, which is a plan's alone: a checkpoint that "
                "is served says itself how it is stored; make one with tasuki quantise, or give "
                "--dry-run"
            )
