"""The access to etcd: the authority of etcd's certificate, and the node's user and password.

Immutable, any thread; files are read once, by load(). A password goes to https or to loopback only.
"""

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tasuki.server.bind import is_loopback

HTTP_PREFIX = "/tasuki/http/"
"""Prefix of the etcd keys of nodes' HTTP servers. The address follows, so nodes may have equal
names."""


class EtcdAccessError(ValueError):
    """A file named by etcd's settings cannot be used. The message names the file and the fix."""


@dataclass(frozen=True)
class EtcdLogin:
    """User and password of this node in etcd."""

    name: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class EtcdAccess:
    tls: ssl.SSLContext | None = None
    login: EtcdLogin | None = field(default=None, repr=False)

    @classmethod
    def load(cls, ca: str, login: str) -> "EtcdAccess":
        """Load the access. ca: PEM file of the authority of etcd's certificate; empty: the
        system's. login: file with USER:PASSWORD; empty: etcd has no users. Raises
        EtcdAccessError."""
        return cls(_authority(ca) if ca else None, _login(login) if login else None)

    def check(self, endpoint: str) -> None:
        """Raise EtcdAccessError if the password would leave this host in plain text."""
        url = urlsplit(endpoint)
        if self.login is not None and url.scheme != "https" and not is_loopback(url.hostname or ""):
            raise EtcdAccessError(
                f"etcd_login would send its password to {endpoint} in plain text: give an https URL"
            )


NO_LOGIN = EtcdAccess()
"""Access to an etcd without users, with the system's authorities."""


def _authority(path: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as error:
        raise EtcdAccessError(
            f"etcd_ca {path} cannot be used ({error.strerror or error}): give the PEM file of the "
            "authority that signed etcd's certificate"
        ) from error


def _login(path: str) -> EtcdLogin:
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise EtcdAccessError(
            f"etcd_login {path} cannot be read: give a file with USER:PASSWORD"
        ) from error
    name, _, password = text.partition(":")
    if not name or not password or "\n" in text:
        raise EtcdAccessError(f"etcd_login {path} must hold one line, USER:PASSWORD")
    return EtcdLogin(name, password)
