"""TCP sockets opened in this process by UCX without handles for its users, found through the
kernel's tables.

Thread rule: any thread. The kernel's tables are only read.
"""

import fcntl
import os
import socket
import stat
import struct
import termios
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

Address = tuple[str, int]
"""(numeric address, port) of a connection's end, as in getsockname()."""

_TABLES = {Path("/proc/self/net/tcp"): socket.AF_INET, Path("/proc/self/net/tcp6"): socket.AF_INET6}
_LOCAL, _REMOTE, _INODE = 1, 2, 9


def owned_connections() -> frozenset[tuple[Address, Address]]:
    """Return (local address, remote address) of every TCP connection end held by a process, from
    /proc/net/tcp and tcp6.

    An end missing in the result is on another host or in another namespace, or its process is dead
    or has closed it. Pure reading. Knows addresses and owners, nothing of a connection's use. Sees
    one network namespace: this process's.
    """
    return frozenset(
        (_address(fields[_LOCAL], family), _address(fields[_REMOTE], family))
        for table, family in _TABLES.items()
        if table.exists()
        for line in table.read_text().splitlines()[1:]
        if (fields := line.split())[_INODE] != "0"
    )


def is_ours(address: str) -> bool:
    """Return True if the numeric address belongs to this host, tested by binding to it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _address(text: str, family: socket.AddressFamily) -> Address:
    """Return the address in the kernel table's hexadecimal form, 32-bit words in host order."""
    digits, port = text.split(":")
    words = bytes.fromhex(digits)
    packed = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
    return socket.inet_ntop(family, packed), int(port, 16)


_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_ESTABLISHED = 1


class InboundSockets:
    """TCP sockets opened in this process by UCX, a library giving its users no handles of them.

    Owns no socket; finds them among this process's file descriptors, by their ports. A peer may
    write over a connection opened by this node, because UCX uses one for both directions. So
    connections to the peers' own listeners count as well. Thread rule: any thread.

    Invariant: only two kinds of sockets are touched. Their ports began to listen between
    listening_ports() and the construction, or they lead to ports named by a peer. None is ever
    read, because a reader would take bytes out of the middle of the library's stream. before: ports
    listening before the library started.
    """

    def __init__(self, before: frozenset[int]) -> None:
        self.ports = listening_ports() - before
        self._peers: frozenset[int] = frozenset()

    def add_peer(self, ports: Iterable[int]) -> None:
        """Count connections to these ports as UCX's too. ports: listening ports of a peer's UCX."""
        self._peers |= frozenset(ports)

    def shut_down(self) -> int:
        """Break every connection of UCX: bytes its peer still sends are answered by RST. Received
        bytes can still be read. Return the number of broken connections."""
        return sum(map(_break, self._all()))

    def shut_down_orphans(self) -> int:
        """Break the connections from this host with no process at their other end. A dead process's
        bytes wait in the kernel and come as fast as they are read. Return the number of broken
        connections."""
        owned = owned_connections()
        return sum(_break(found) for found in self._all() if _orphaned(found, owned))

    def unread(self) -> int:
        """Return the number of bytes received over broken connections and not read yet."""
        return sum(_unread(found) for found in self._all() if not _established(found))

    def _all(self) -> Iterator[socket.socket]:
        """Yield UCX's connected or broken sockets, each valid until the next is yielded."""
        for handle in _handles():
            with _tcp_socket(handle) as found:
                if found is not None and not _listens(found) and self._ours(found):
                    yield found

    def _ours(self, found: socket.socket) -> bool:
        if _port(found) in self.ports:
            return True
        try:
            return found.getpeername()[1] in self._peers
        except OSError:
            # Not connected.
            return False


def listening_ports() -> frozenset[int]:
    """Return the TCP ports with listeners in this process."""
    ports = set()
    for handle in _handles():
        with _tcp_socket(handle) as found:
            if found is not None and _listens(found):
                ports.add(_port(found))
    return frozenset(ports)


def _break(found: socket.socket) -> bool:
    try:
        found.shutdown(socket.SHUT_RDWR)
    except OSError:
        # Broken already.
        return False
    return True


def _orphaned(found: socket.socket, owned: frozenset[tuple[Address, Address]]) -> bool:
    try:
        theirs, ours = found.getpeername()[:2], found.getsockname()[:2]
    except OSError:
        # Not connected any more.
        return False
    return (theirs, ours) not in owned and is_ours(theirs[0])


def _established(found: socket.socket) -> bool:
    return found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _ESTABLISHED


def _unread(found: socket.socket) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(found.fileno(), termios.FIONREAD, bytes(4)))
    return int(count)


def _port(found: socket.socket) -> int:
    return int(found.getsockname()[1])


def _handles() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]


@contextmanager
def _tcp_socket(handle: int) -> Iterator[socket.socket | None]:
    """Yield a duplicate of a descriptor's socket, closed afterwards; None if it is not TCP."""
    try:
        if not stat.S_ISSOCK(os.fstat(handle).st_mode):
            yield None
            return
        duplicate = os.dup(handle)
    except OSError:
        # It was closed after the listing.
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
