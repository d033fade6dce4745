"""What a node serves and where, for people who read the log and for machines that do."""

import contextlib
import ipaddress
import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from tasuki.server.bind import join_address
from tasuki.utils.logs import writes_json

log = logging.getLogger(__name__)

_QUESTION = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32}


@dataclass(frozen=True)
class Served:
    """grpc, http: HOST:PORT as bound; http None: there is none. about: as about_node()."""

    about: Mapping[str, str]
    grpc: str
    http: str | None
    tls: bool
    keyed: bool

    def announce(self) -> None:
        """On stderr: lines for people, or one record where the log is for machines."""
        if writes_json():
            places = {"grpc": self.grpc, "http": self.http, "page": self.page}
            log.info("ready", extra={**self.about, **places})
            return
        # A log that is full or closed ends no node.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write("".join(f"{line}\n" for line in self.lines()))
            sys.stderr.flush()

    def lines(self) -> list[str]:
        rows = []
        if self.http is not None:
            rows.append(("page", f"{self.page}"))
            if self._answers:
                rows.append(("OpenAI, Anthropic", f"{self.page}v1"))
        rows.append(("gRPC", self.grpc))
        if self.http is not None and self._answers:
            rows.append(("try", self._curl()))
        about = self.about
        head = f"{about['node']} ({about['role']}) is ready: {about['model']}"
        return [head, *(f"  {name:<18} {where}" for name, where in rows)]

    @property
    def page(self) -> str | None:
        if self.http is None:
            return None
        return f"{'https' if self.tls else 'http'}://{reachable(self.http)}/"

    @property
    def _answers(self) -> bool:
        return self.about["role"] != "prefill"

    def _curl(self) -> str:
        more = " --cacert CA.pem" if self.tls else ""
        more += " -H 'Authorization: Bearer KEY'" if self.keyed else ""
        kind = "-H 'Content-Type: application/json'"
        return f"curl {self.page}v1/chat/completions{more} {kind} -d '{json.dumps(_QUESTION)}'"


def reachable(address: str) -> str:
    """HOST:PORT by which this machine reaches what is bound there: an unspecified host is every
    one, loopback's among them."""
    host, _, port = address.rpartition(":")
    bare = host.strip("[]")
    try:
        unspecified = ipaddress.ip_address(bare).is_unspecified
    except ValueError:
        unspecified = False
    loopback = "::1" if ":" in bare else "127.0.0.1"
    return join_address(loopback, int(port)) if unspecified else address
