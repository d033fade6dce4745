"""Notifications between processes of one host: datagrams on a Unix socket, whose two ends are
compiled (cpp_cache/dataplane/mailbox.h).

Thread rule and invariants: as there.
"""

import secrets
from dataclasses import dataclass

from tasuki.pycache._cpp_cache import Mailbox

SECRET_BYTES = 16


@dataclass(frozen=True)
class MailboxAddress:
    """Where to write, and the secret that must stand before each notification."""

    name: str
    secret: bytes

    @staticmethod
    def new() -> "MailboxAddress":
        name = f"tasuki-{secrets.token_hex(SECRET_BYTES)}"
        return MailboxAddress(name, secrets.token_bytes(SECRET_BYTES))

    def open(self) -> Mailbox:
        """The reading end."""
        return Mailbox(self.name, self.secret)
