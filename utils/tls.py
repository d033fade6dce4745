"""TLS files: the certificates of servers and clients, and the CAs of each.

Holds paths of PEM files, never their contents. The files are read once, at the start of a server or
the creation of a channel, so a renewed certificate needs a restart. Immutable, any thread.

The module also reads the expiry dates of a PEM file's certificates. Pure, any thread.

OpenSSL, through `ssl`, shows no dates of an unchecked certificate, so this module reads the dates
itself. REQUIRES of the file: OpenSSL has loaded it.
"""

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import grpc


class TlsError(OSError):
    """A certificate, key or authority cannot be used. The message names the file and the fix."""


@dataclass(frozen=True)
class ServerTls:
    """The TLS files of a server. certificate: the server's chain. key: its private key. client_ca:
    authorities required to sign callers' certificates (mTLS); empty: callers need no
    certificate."""

    certificate: str
    key: str
    client_ca: str = ""

    def grpc_credentials(self) -> "grpc.ServerCredentials":
        """Return the server's credentials for gRPC. Raises TlsError."""
        import grpc

        # Check now: gRPC would report a fault only at the first handshake, and without a file name.
        self.ssl_context()
        return grpc.ssl_server_credentials(
            [(_read(self.key), _read(self.certificate))],
            root_certificates=_read(self.client_ca) if self.client_ca else None,
            require_client_auth=bool(self.client_ca),
        )

    def ssl_context(self) -> ssl.SSLContext:
        """Return the server's TLS context for HTTP. Raises TlsError."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        for path in (self.certificate, self.key, self.client_ca):
            if path:
                _read(path)
        try:
            context.load_cert_chain(self.certificate, self.key)
        except ssl.SSLError as error:
            raise TlsError(
                f"{self.certificate} and {self.key} are not a certificate and its key in PEM "
                f"({error.reason}): give the two files that were issued together"
            ) from error
        if self.client_ca:
            context.verify_mode = ssl.CERT_REQUIRED
            _trust(context, self.client_ca)
        return context


@dataclass(frozen=True)
class ClientTls:
    """The TLS files of a client. ca: authorities of servers' certificates. certificate, key: the
    client's own, if the server asks for them; both or neither."""

    ca: str
    certificate: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            raise ValueError("a client certificate and its key go together: give both or neither")

    def grpc_credentials(self) -> "grpc.ChannelCredentials":
        """Return the client's credentials for gRPC. Raises TlsError."""
        import grpc

        _trust(ssl.create_default_context(ssl.Purpose.SERVER_AUTH), self.ca)
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.ca),
            private_key=_read(self.key) if self.key else None,
            certificate_chain=_read(self.certificate) if self.certificate else None,
        )


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise TlsError(
            f"{path} cannot be read ({error.strerror}): give a PEM file this user may read"
        ) from error


def _trust(context: ssl.SSLContext, path: str) -> None:
    _read(path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise TlsError(
            f"{path} holds no certificate authority in PEM ({error.reason}): give the file that "
            "signed the other side's certificate"
        ) from error


_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_VERSION = 0xA0
_UTC_TIME = 0x17
_CENTURY_TURNS = 50
"""Smallest two-digit year of the last century. Smaller two-digit years are of this century (RFC
5280, 4.1.2.5.1)."""


def not_after_dates(pem: str) -> list[float]:
    """Return the expiry of each certificate in a PEM text, in order, in seconds since 1970. Raises
    ValueError if one is no certificate."""
    return [_not_after(ssl.PEM_cert_to_DER_cert(block)) for block in _blocks(pem)]


def _blocks(pem: str) -> Iterator[str]:
    for part in pem.split(_BEGIN)[1:]:
        body, end, _ = part.partition(_END)
        if not end:
            raise ValueError("a certificate has no end")
        yield f"{_BEGIN}{body}{end}\n"


def _not_after(der: bytes) -> float:
    """Return the expiry of a certificate in DER, in seconds since 1970.

    Certificate ::= SEQUENCE { tbsCertificate, ... }; TBSCertificate ::= SEQUENCE { [0] version
    OPTIONAL, serialNumber, signature, issuer, validity SEQUENCE { notBefore, notAfter }, ... }
    """
    certificate = _elements(der)[0][1]
    fields = _elements(_elements(certificate)[0][1])
    if fields[0][0] == _VERSION:
        fields = fields[1:]
    (_, validity) = fields[3]
    kind, text = _elements(validity)[1]
    return _seconds(kind, text.decode("ascii"))


def _seconds(kind: int, text: str) -> float:
    if kind == _UTC_TIME:
        century = "20" if int(text[:2]) < _CENTURY_TURNS else "19"
        text = century + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _elements(der: bytes) -> list[tuple[int, bytes]]:
    """Return tags and contents of consecutive DER values, the first five at most. Fields after the
    validity are not read."""
    found: list[tuple[int, bytes]] = []
    at = 0
    while at < len(der) and len(found) <= 5:
        if at + 2 > len(der):
            raise ValueError("a certificate ends within a field")
        tag, size = der[at], der[at + 1]
        at += 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(der[at : at + count], "big")
            at += count
        if at + size > len(der):
            raise ValueError("a certificate ends within a field")
        found.append((tag, der[at : at + size]))
        at += size
    if not found:
        raise ValueError("a certificate has an empty field")
    return found
