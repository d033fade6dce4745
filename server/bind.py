"""Addresses and ports of servers, and the rules for TLS and keys at each address.

PortClaim: a port shared by the processes of one node, and by no other process.
"""

import errno
import ipaddress
import socket
from collections.abc import Mapping

from tasuki.server.auth.callers import Access


class BindError(OSError):
    """A server cannot listen at the address. The message names the address and the fix."""


def read_address(field: str, address: str) -> tuple[str, int]:
    """Split the address HOST:PORT into (host without brackets, port). Raises ValueError naming the
    setting `field`."""
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{field} {address!r} is not HOST:PORT: write for example 127.0.0.1:0")
    return host.removeprefix("[").removesuffix("]"), int(port)


def parse_bind(bind: str, access: Access, field: str = "bind") -> tuple[str, int]:
    """Return (host, port) of the server address `bind`, as read_address. field: the setting's name.
    Raises BindError, also if plain text would leave this host."""
    try:
        host, port = read_address(field, bind)
    except ValueError as error:
        raise BindError(str(error)) from error
    if not (is_loopback(host) or access.tls is not None or access.insecure):
        raise BindError(
            f"{field} {bind} is not a loopback address and this server has no TLS: bind to "
            "127.0.0.1, give --tls-cert and --tls-key, or pass --insecure on a private network"
        )
    return host, port


def require_callers_known(bind: str, access: Access, field: str = "bind") -> None:
    """Raise BindError if a caller on another host would need neither a key nor a certificate. Also
    raises it as parse_bind() does. field: the setting's name."""
    host, _ = parse_bind(bind, access, field)
    shows_certificate = access.tls is not None and access.tls.client_ca
    if not (is_loopback(host) or access.keys or shows_certificate):
        raise BindError(
            f"{field} {bind} is not a loopback address and this server identifies no caller: "
            "give --api-key or --api-keys, --tls-client-ca where certificates are enough, or bind "
            "to 127.0.0.1"
        )


def check_binds(binds: Mapping[str, str], access: Access) -> None:
    """Check the addresses of the client-facing servers before anything is loaded for them. binds:
    HOST:PORT by the setting's name; an empty address is skipped. Raises BindError, as these servers
    would."""
    for field, bind in binds.items():
        if bind:
            require_callers_known(bind, access, field)


def join_address(host: str, port: int) -> str:
    """Return HOST:PORT, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class PortClaim:
    """The owner of a bound socket without connections. While it is open, only processes of this
    user may listen at the port (SO_REUSEPORT)."""

    def __init__(self, field: str, bind: str, access: Access) -> None:
        """Bind a socket and keep it. field: the setting's name. bind: HOST:PORT; port 0 selects a
        free one. Raises BindError, also for a port in use and for an address refused by
        require_callers_known()."""
        host, port = parse_bind(bind, access, field)
        require_callers_known(bind, access, field)
        try:
            self._socket = _bound(host, port)
        except OSError as error:
            raise BindError(f"{field} {bind} failed: is the port taken? Try port 0") from error
        # Set after the bind: set earlier, it would have allowed a port shared by another node.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.address = join_address(host, self._socket.getsockname()[1])
        """HOST:PORT of the bound socket, with the selected port."""

    def close(self) -> None:
        self._socket.close()


def _bound(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family)
    try:
        try:
            bound.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            # Connections of an ended node block the port for a minute, but not against this option.
            # It is set only now, because with it two claims of a port could both succeed.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
