"""Everything that shapes a front, fixed before it starts."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from ..dashboard.field_names import DIALECTS
from ..engine.config import option
from .access import Access
from .api_keys import NO_KEYS, ApiKeys
from .logs import LOG_FORMATS, LOG_LEVELS
from .rate_limits import RateLimits
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
    api_keys: str = option(
        "", "file with a caller's name and key a line; each has rate limits of its own"
    )
    requests_per_minute: int = option(0, "what one API key may ask in a minute; 0: no limit")
    tokens_per_minute: int = option(
        0, "prompt and answer tokens of one API key in a minute; 0: no limit"
    )
    max_message_mib: int = option(32, "the largest gRPC message or HTTP body, MiB")
    max_connections: int = option(1024, "open at a time, of HTTP and of gRPC each")
    allowed_hosts: str = option(
        "",
        "names, comma-separated, that HTTP may be called by besides loopback's and the served "
        "address; *: any; none: any off loopback",
    )
    log_format: str = option("text", "lines for people, or one JSON object a line", LOG_FORMATS)
    log_level: str = option("info", "the least that is logged", LOG_LEVELS)
    otlp_endpoint: str = option(
        "", "http://HOST:PORT of an OpenTelemetry collector to send traces to; none: do not"
    )
    metrics_compat: str = option(
        "none", "other names for /metrics to offer beside its own", DIALECTS
    )
    metrics: str = option("on", "count and remember what requests were told", ("on", "off"))
    served_model_name: str = option("", "how HTTP clients name the model; none: its folder's name")
    tls_cert: str = option(
        "",
        "PEM file: the certificate chain of gRPC and HTTP; none: plain text",
        aliases=("--ssl-certfile",),
    )
    tls_key: str = option("", "PEM file: the private key of tls_cert", aliases=("--ssl-keyfile",))
    tls_client_ca: str = option(
        "",
        "PEM file: callers must show a certificate signed by these",
        aliases=("--ssl-ca-certs",),
    )
    gateway: bool = option(
        False, "serve the smg gateway's engine protocol beside our own (needs tasuki[smg])"
    )
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
        for name in ("requests_per_minute", "tokens_per_minute"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if not 1 <= self.max_message_mib <= 1024:
            raise ValueError(f"max_message_mib must be in [1, 1024], not {self.max_message_mib}")
        if self.max_connections < 1:
            raise ValueError(f"max_connections must be at least 1, not {self.max_connections}")
        if self.max_sessions < 1:
            raise ValueError(f"max_sessions must be at least 1, not {self.max_sessions}")
        if not self.drain_timeout >= 0:
            raise ValueError(f"drain_timeout must be 0 or more, not {self.drain_timeout}")

    @property
    def access(self) -> Access:
        """Raises ApiKeyError."""
        tls = None
        if self.tls_cert:
            tls = ServerTls(self.tls_cert, self.tls_key, self.tls_client_ca)
        keys = ApiKeys.load(Path(self.api_keys)) if self.api_keys else NO_KEYS
        size = self.max_message_mib * 2**20
        return Access(
            tls,
            self.api_key,
            self.insecure,
            keys,
            max_message_bytes=size,
            max_connections=self.max_connections,
            allowed_hosts=tuple(filter(None, map(str.strip, self.allowed_hosts.split(",")))),
        )

    @property
    def limits(self) -> RateLimits:
        """Fresh ones, whose minute begins now."""
        return RateLimits(self.requests_per_minute, self.tokens_per_minute, time.monotonic)
