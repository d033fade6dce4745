"""TCP sockets that a library opened in this process and gives no handle to: UCX's.

Owns no socket; finds them by their listeners' ports among this process's file descriptors. A peer
may write over a connection that we opened to it, since UCX uses one for both directions: so those
to the peers' own listeners count as well. Thread rule: any thread. Invariant: only sockets on ports
that began to listen between listening_ports() and the construction, and those to ports that a peer
named, are touched.
"""

import os
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_FAMILIES = (socket.AF_INET, socket.AF_INET6)


class InboundSockets:
    """The connections accepted on ports that have begun to listen since `before`, and those to
    peers."""

    def __init__(self, before: frozenset[int]) -> None:
        self.ports = listening_ports() - before
        self._peers: frozenset[int] = frozenset()

    def add_peer(self, ports: Iterable[int]) -> None:
        """ports: on which the peer's library listens."""
        self._peers |= frozenset(ports)

    def shut_down(self) -> int:
        """Break every connection: what its peer still has to send is answered by RST. What has
        arrived already can still be read. Returns how many were broken."""
        broken = 0
        for handle in _handles():
            with _tcp_socket(handle) as found:
                if found is None or _listens(found) or not self._ours(found):
                    continue
                try:
                    found.shutdown(socket.SHUT_RDWR)
                except OSError:
                    # Broken already.
                    continue
                broken += 1
        return broken

    def _ours(self, found: socket.socket) -> bool:
        if found.getsockname()[1] in self.ports:
            return True
        try:
            return found.getpeername()[1] in self._peers
        except OSError:
            # Not connected.
            return False


def listening_ports() -> frozenset[int]:
    """TCP ports on which this process listens."""
    ports = set()
    for handle in _handles():
        with _tcp_socket(handle) as found:
            if found is not None and _listens(found):
                ports.add(int(found.getsockname()[1]))
    return frozenset(ports)


def _handles() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]


@contextmanager
def _tcp_socket(handle: int) -> Iterator[socket.socket | None]:
    """A duplicate of the handle, closed afterwards; None where it is no TCP socket."""
    try:
        if not stat.S_ISSOCK(os.fstat(handle).st_mode):
            yield None
            return
        duplicate = os.dup(handle)
    except OSError:
        # Closed since it was listed.
        yield None
        return
    try:
        found = socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        yield None
        return
    with found:
        yield found if found.family in _FAMILIES and found.type == socket.SOCK_STREAM else None


def _listens(found: socket.socket) -> bool:
    return bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
