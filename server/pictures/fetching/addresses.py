"""Addresses of pictures that may be fetched: https, listed hosts, global internet addresses.

A caller chooses the URL, so a fetch could reach what only this machine can reach: itself, its
network, a cloud's metadata service. The URL is checked by name here, and by the resolved address
before it is dialled. Both checks and the call read the same parsed URL. Pure functions.
"""

import ipaddress
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from yarl import URL

MOST_URL = 4096
"""Characters of an address."""
_HTTPS_PORT = 443
_MOST_HOST = 253

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""Translated addresses: the last 32 bits are of version 4."""
_COMPATIBLE = ipaddress.IPv6Network("::/96")
_LOCAL = (
    ipaddress.IPv6Network("fec0::/10"),
    ipaddress.IPv6Network("64:ff9b:1::/48"),
)
"""Local addresses that some versions of Python call global: of a site, and of a local NAT64."""


class RefusedAddress(ValueError):
    """An address that is not fetched. Its text gives the cause and the fix."""


@dataclass(frozen=True)
class FetchHosts:
    """Hosts of `--fetch-pictures`, in lower case. A listed one stands for all below it."""

    names: tuple[str, ...]

    @staticmethod
    def of(names: Iterable[str]) -> "FetchHosts":
        """Return the hosts of a setting. Raises ValueError for anything but names of hosts."""
        found = []
        for name in names:
            host = name.lower()
            labels = host.split(".")
            if (
                len(host) > _MOST_HOST
                or not all(_is_label(label) for label in labels)
                or labels[-1].isdigit()
            ):
                raise ValueError(
                    f"fetch_pictures has {name!r:.60}: list names of hosts, such as "
                    "images.example.com, without a scheme or a port"
                )
            found.append(host)
        return FetchHosts(tuple(found))

    def holds(self, host: str) -> bool:
        """Return True if the host is listed, or below a listed one."""
        return any(host == name or host.endswith(f".{name}") for name in self.names)


def _is_label(label: str) -> bool:
    plain = label.replace("-", "").replace("_", "")
    return plain.isascii() and plain.isalnum() and not label.startswith("-") and len(label) < 64


def read_address(url: str, hosts: FetchHosts) -> URL:
    """Return a URL that may be fetched. Raises RefusedAddress."""
    if len(url) > MOST_URL:
        raise RefusedAddress(f"has more than {MOST_URL} characters: send a shorter address")
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise RefusedAddress("has characters that no URL has: encode them")
    try:
        found = URL(url)
        host, port = found.host, found.port
    except ValueError as error:
        raise RefusedAddress("is no URL: send https://HOST/PATH") from error
    if found.scheme != "https" or port != _HTTPS_PORT or not host:
        raise RefusedAddress("is not https on port 443: only such addresses are fetched")
    if found.user is not None or found.password is not None:
        raise RefusedAddress("has a user or a password: send an address without them")
    host = host.lower()
    if not hosts.holds(host):
        listed = ", ".join(hosts.names)
        raise RefusedAddress(
            f"is of host {host!r:.80}, and pictures are fetched from {listed:.200} only: send "
            "data:image/png;base64,..., or have --fetch-pictures list the host"
        )
    return found.with_fragment(None)


def is_global(address: IpAddress) -> bool:
    """Return True for an address of the public internet. Addresses of version 6 that carry one of
    version 4 are global only if that one is too."""
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not address.is_multicast and not address.is_reserved
    carried = _carried(address)
    if carried:
        return all(map(is_global, carried))
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not any(address in network for network in _LOCAL)
    )


def _carried(address: ipaddress.IPv6Address) -> Sequence[ipaddress.IPv4Address]:
    """Return the addresses of version 4 inside one of version 6: mapped, compatible, NAT64, 6to4,
    Teredo."""
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address.sixtofour is not None:
        return (address.sixtofour,)
    if address.teredo is not None:
        return address.teredo
    if any(address in network for network in (_NAT64, _COMPATIBLE)):
        return (ipaddress.IPv4Address(int(address) & 0xFFFFFFFF),)
    return ()


def check_global(host: str, addresses: Collection[str]) -> None:
    """Raise RefusedAddress unless all addresses of a host's answer are of the public internet."""
    for text in addresses:
        # A scope such as %eth0 is local anyway.
        if "%" in text or not is_global(ipaddress.ip_address(text)):
            raise RefusedAddress(
                f"is of host {host!r:.80}, which is no address of the public internet: send "
                "data:image/png;base64,..."
            )
