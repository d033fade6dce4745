"""A port that the processes of one node share, and no other process may."""

import errno
import socket

from tasuki.server.auth.access import Access
from tasuki.server.bind import BindError, join_address, parse_bind, require_callers_known


class PortClaim:
    """Owns a socket that is bound and takes no connections. While it stands, processes of this user
    may serve the port with SO_REUSEPORT, and nobody can without."""

    def __init__(self, field: str, bind: str, access: Access) -> None:
        """field: the setting's name. bind: HOST:PORT, port 0 picks one. Raises BindError, also
        where another node shares the port among its own processes."""
        host, port = parse_bind(bind, access, field)
        require_callers_known(bind, access, field)
        try:
            self._socket = _bound(host, port)
        except OSError as error:
            raise BindError(f"{field} {bind} failed: is the port taken? Try port 0") from error
        # Not before: it would have let this node onto a port that another one shares.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.address = join_address(host, self._socket.getsockname()[1])
        """HOST:PORT."""

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
            # Connections of a node that has ended hold the port for a minute, but not against this
            # option. Not at once: of two claims with it both would stand.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
