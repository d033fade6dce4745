"""Who may reach a daemon's servers: TLS, the API key, and whether plain text may leave the host."""

from dataclasses import dataclass, field

from .tls import ServerTls


@dataclass(frozen=True)
class Access:
    """tls: None serves plain text, which only loopback gets unless `insecure`. api_key: callers of
    gRPC and HTTP must bear it; empty: all may ask."""

    tls: ServerTls | None = None
    api_key: str = field(default="", repr=False)
    insecure: bool = False


LOOPBACK_ONLY = Access()
