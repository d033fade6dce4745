"""The kernel's table of this host's TCP connections, as /proc/net/tcp and tcp6 show it.

Pure reading. Knows addresses and owners, nothing of who uses a connection for what. Sees one
network namespace: this process's.
"""

import socket
from pathlib import Path

Address = tuple[str, int]
"""(numeric address, port), as getsockname() has it."""

_TABLES = {
    Path("/proc/self/net/tcp"): socket.AF_INET,
    Path("/proc/self/net/tcp6"): socket.AF_INET6,
}
_LOCAL, _REMOTE, _INODE = 1, 2, 9


def owned_connections() -> frozenset[tuple[Address, Address]]:
    """(local, remote) of every end of a connection that a process holds. An end that is not here is
    on another host or in another namespace, or its process is dead or has closed it."""
    return frozenset(
        (_address(fields[_LOCAL], family), _address(fields[_REMOTE], family))
        for table, family in _TABLES.items()
        if table.exists()
        for line in table.read_text().splitlines()[1:]
        if (fields := line.split())[_INODE] != "0"
    )


def is_ours(address: str) -> bool:
    """Whether the numeric address is one of this host's: only those can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _address(text: str, family: socket.AddressFamily) -> Address:
    """From the kernel's hexadecimal, whose 32-bit words are in the host's order."""
    digits, port = text.split(":")
    words = bytes.fromhex(digits)
    packed = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
    return socket.inet_ntop(family, packed), int(port, 16)
