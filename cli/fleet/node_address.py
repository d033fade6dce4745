"""Addresses of nodes' HTTP servers, which may come from another host. Pure."""

import re

from tasuki.server.bind import is_loopback

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
