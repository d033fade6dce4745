"""Notifications between processes of one host: datagrams on a Unix socket.

Owns the socket. Knows no windows and no peers' lives. Thread rule: one thread at a time per end;
nothing blocks. Invariants: what does not bear the mailbox's secret is dropped, since any process of
the host can see its address; datagrams of one writer arrive in order, each once.
"""

import secrets
import socket
from dataclasses import dataclass

from tasuki.transfer.errors import TransportError

SECRET_BYTES = 16
_LONGEST = 1 << 16


@dataclass(frozen=True)
class MailboxAddress:
    """Where to write, and the secret that must stand before each notification."""

    name: str
    secret: bytes


class Mailbox:
    """The reading end."""

    def __init__(self) -> None:
        self.address = MailboxAddress(
            f"tasuki-{secrets.token_hex(SECRET_BYTES)}", secrets.token_bytes(SECRET_BYTES)
        )
        self.dropped = 0
        self._socket = _datagram_socket()
        self._socket.bind(_abstract(self.address))

    def read(self) -> list[bytes]:
        """All that has come since the last call."""
        arrived: list[bytes] = []
        while True:
            try:
                datagram = self._socket.recv(_LONGEST)
            except BlockingIOError:
                return arrived
            secret, notification = datagram[:SECRET_BYTES], datagram[SECRET_BYTES:]
            if secrets.compare_digest(secret, self.address.secret):
                arrived.append(notification)
            else:
                self.dropped += 1

    def close(self) -> None:
        """Idempotent; writers see it with their next word."""
        self._socket.close()


class MailboxWriter:
    def __init__(self, address: MailboxAddress) -> None:
        """Raises TransportError where nobody reads there."""
        self._secret = address.secret
        self._socket = _datagram_socket()
        try:
            self._socket.connect(_abstract(address))
        except OSError as error:
            self._socket.close()
            raise TransportError(f"the peer's mailbox cannot be reached: {error}") from error

    def write(self, notification: bytes) -> bool:
        """False where the reader has to read first. Raises TransportError where it is gone."""
        try:
            self._socket.send(self._secret + notification)
        except BlockingIOError:
            return False
        except OSError as error:
            raise TransportError(f"the peer's mailbox is gone: {error}") from error
        return True

    def close(self) -> None:
        """Idempotent."""
        self._socket.close()


def _datagram_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


def _abstract(address: MailboxAddress) -> str:
    """In no file system, so that nothing is left behind by a process that was killed."""
    return f"\0{address.name}"
