"""Everything that shapes a front, fixed before it starts."""

from dataclasses import dataclass, field

from ..dashboard.field_names import DIALECTS
from ..engine.config import option
from .access import Access
from .tls import ServerTls


@dataclass(frozen=True)
class FrontConfig:
    bind: str = option("127.0.0.1:50051", "HOST:PORT to serve; port 0 picks one")
    http_bind: str = option("", "HOST:PORT of the HTTP API beside gRPC; none: off")
    # Not option(): a secret stays out of repr.
    api_key: str = field(
        default="",
        repr=False,
        metadata={"help": "callers of gRPC and HTTP must bear this key; none: all may ask"},
    )
    metrics_compat: str = option(
        "none", "other names for /metrics to offer beside its own", DIALECTS
    )
    metrics: str = option("on", "count and remember what requests were told", ("on", "off"))
    served_model_name: str = option("", "how HTTP clients name the model; none: its folder's name")
    tls_cert: str = option("", "PEM file: the certificate chain of gRPC and HTTP; none: plain text")
    tls_key: str = option("", "PEM file: the private key of tls_cert")
    tls_client_ca: str = option("", "PEM file: callers must show a certificate signed by these")
    insecure: bool = option(False, "serve a non-loopback address in plain text")
    drain_timeout: float = option(30.0, "seconds that requests in flight get after SIGTERM")
    max_sessions: int = option(1024, "sessions open at a time")
    session_idle_seconds: float = option(3600.0, "a session idle so long may give way to a new one")
    exit_with_parent: bool = option(False, "stop when stdin ends, as a launcher's child should")

    def __post_init__(self) -> None:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key go together: give both or neither")
        if self.tls_client_ca and not self.tls_cert:
            raise ValueError("tls_client_ca needs tls_cert and tls_key: there is no TLS without")
        if self.max_sessions < 1:
            raise ValueError(f"max_sessions must be at least 1, not {self.max_sessions}")
        if not self.drain_timeout >= 0:
            raise ValueError(f"drain_timeout must be 0 or more, not {self.drain_timeout}")

    @property
    def access(self) -> Access:
        tls = None
        if self.tls_cert:
            tls = ServerTls(self.tls_cert, self.tls_key, self.tls_client_ca)
        return Access(tls, self.api_key, self.insecure)
