"""How nodes are asked for their metrics: how often, for how long, and by which key.

Addresses of nodes' HTTP servers, which may come from another host. Pure.
"""

import re
import ssl
from dataclasses import dataclass, field

from tasuki.server.bind import is_loopback


@dataclass(frozen=True)
class PollLimits:
    """every_seconds: from one answer to the next question. answer_seconds: for an answer, whole.
    at_a_time: questions in flight."""

    every_seconds: float = 5.0
    answer_seconds: float = 3.0
    answer_bytes: int = 4 << 20
    at_a_time: int = 64


@dataclass(frozen=True)
class Credentials:
    """key: borne to every node; empty for none. tls: nodes are asked by HTTPS and checked against
    it; None: by HTTP. insecure: the key may leave this host in plain text."""

    key: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    insecure: bool = False


_ADDRESS = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\]):(\d{1,5})")


class AddressError(ValueError):
    """An address that is not fetched; the message names it and the mend."""


def check_address(address: str) -> str:
    """`address` itself. Raises AddressError where it is not HOST:PORT: a URL made of anything else
    could lead elsewhere."""
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[2]) <= 65535:
        raise AddressError(f"{address[:120]!r} is not HOST:PORT: write for example 127.0.0.1:8000")
    return address


def is_here(address: str) -> bool:
    """Whether it is loopback. REQUIRES: check_address()."""
    return is_loopback(address.rpartition(":")[0].strip("[]"))
