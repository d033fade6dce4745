"""TLS files: the certificates of servers and clients, and the CAs that each trusts.

Holds paths of PEM files, never their contents; they are read once, when a server starts or a
channel is made, so a renewed certificate needs a restart. Immutable, any thread.
"""

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Settings name these classes, and a command line does not wait for gRPC.
    import grpc


class TlsError(OSError):
    """A certificate, key or authority cannot be used; the message names the file and the mend."""


@dataclass(frozen=True)
class ServerTls:
    """certificate: the chain this server shows; key: its private key; client_ca: callers must show
    a certificate signed by one of these authorities (mTLS), empty: callers need none."""

    certificate: str
    key: str
    client_ca: str = ""

    def grpc_credentials(self) -> "grpc.ServerCredentials":
        """Raises TlsError."""
        import grpc

        # Also checks what gRPC would only complain of at the first handshake, and namelessly.
        self.ssl_context()
        return grpc.ssl_server_credentials(
            [(_read(self.key), _read(self.certificate))],
            root_certificates=_read(self.client_ca) if self.client_ca else None,
            require_client_auth=bool(self.client_ca),
        )

    def ssl_context(self) -> ssl.SSLContext:
        """For HTTP. Raises TlsError."""
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
    """ca: authorities that a server's certificate is checked against; certificate, key: what this
    caller shows where it is asked, both or neither."""

    ca: str
    certificate: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            raise ValueError("a client certificate and its key go together: give both or neither")

    def grpc_credentials(self) -> "grpc.ChannelCredentials":
        """Raises TlsError."""
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
