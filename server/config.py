"""The settings of a node's servers, fixed before it starts."""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tasuki.dashboard.dialects import DIALECTS
from tasuki.engine.config import EngineConfigError
from tasuki.server.auth.callers import ANYBODY, CERTIFIED, NO_KEYS, Access, ApiKeys, Caller, Scope
from tasuki.utils.logs import LOG_FORMATS, LOG_LEVELS
from tasuki.utils.options import LONGEST_SECONDS, Headings, MostAsked, option
from tasuki.utils.tls import ServerTls
from tasuki.utils.urls import check_origin, check_url

from .bind import is_loopback, read_address
from .discovery.etcd_access import EtcdAccess

if TYPE_CHECKING:
    # These imports load gRPC and the engine's messages, and would delay every command line.
    from tasuki.server.auth.limits import CallerLimits

ENGINE_PLACES = ("auto", "thread", "process")
STOP_PLACES = ("answer", "everywhere")
THINKING_REASONS = ("asked", "template")
MOST_FRONT_WORKERS = 64
_MESSAGE_MIB = 32
_MESSAGE_MIB_SEEING = 64
"""Default of max_message_mib for text, and with pictures: agents send all of them each turn."""


@dataclass(frozen=True)
class ServerConfig:
    MOST_ASKED: ClassVar[MostAsked] = {
        "bind": "HOST:PORT of gRPC",
        "http_bind": "HOST:PORT of HTTP; port 0 picks one",
        "api_key": "key of all callers; none: any local caller may ask",
        "served_model_name": "model name for clients",
    }
    HEADINGS: ClassVar[Headings] = {
        "Addresses": (
            "bind",
            "http_bind",
            "http_etcd",
            "http_advertise",
            "etcd_ca",
            "etcd_login",
            "allowed_hosts",
            "allowed_origins",
            "gateway",
            "insecure",
        ),
        "TLS": ("tls_cert", "tls_key", "tls_client_ca"),
        "Callers and their limits": (
            *("api_key", "api_keys", "share_cache", "requests_per_minute", "tokens_per_minute"),
            *("requests_per_key", "sessions_per_key", "watchers_per_key", "max_watchers"),
            *("max_message_mib", "max_connections", "max_sessions", "session_idle_seconds"),
            "session_pictures_mib",
            *("response_store_mib", "responses_per_key", "response_seconds"),
        ),
        "Model": (
            *("served_model_name", "generation_config", "strict_fields", "chat_cache_mib"),
            *("stop_strings", "messages_thinking", "whole_calls"),
        ),
        "Logs and metrics": (
            *("log_format", "log_level", "otlp_endpoint", "metrics", "metrics_compat"),
        ),
        "Life": (
            *("engine_process", "front_workers", "drain_grace", "drain_timeout"),
            "exit_with_parent",
        ),
    }

    bind: str = option("127.0.0.1:50051", "HOST:PORT to serve; port 0 picks one")
    http_bind: str = option("", "HOST:PORT of the HTTP API beside gRPC; none: off")
    http_etcd: str = option(
        "",
        "etcd's URL, as http://127.0.0.1:2379, to register http_bind there for `tasuki dashboard "
        "--etcd`; none: do not",
        unit="URL",
    )
    http_advertise: str = option(
        "",
        "HOST:PORT of this node in http_etcd; none: as bound",
        unit="HOST:PORT",
    )
    etcd_ca: str = option(
        "", "PEM file: etcd must show a certificate signed by these; none: by the system's"
    )
    etcd_login: str = option(
        "", "file with USER:PASSWORD for etcd; none: it asks for no user", unit="FILE"
    )
    # Not option(): this keeps a secret out of repr.
    api_key: str = field(
        default="",
        repr=False,
        metadata={
            "help": "key of all callers of gRPC and HTTP, with every scope; none: all callers of "
            "this host may ask"
        },
    )
    api_keys: str = option(
        "",
        "file of lines NAME KEY [SCOPES]; scopes: caller (default), metrics, gateway, "
        "operator; limits hold by key",
        unit="FILE",
    )
    share_cache: bool = option(
        False,
        "share cached prefixes among api_keys; a caller may then learn others' prompts by "
        "whole pages",
    )
    requests_per_minute: int = option(0, "requests of one API key in a minute; 0: no limit")
    tokens_per_minute: int = option(
        0, "prompt and answer tokens of one API key in a minute; 0: no limit"
    )
    requests_per_key: int = option(
        256,
        "requests in flight of one of several API keys, but for a gateway's; 0: no limit",
    )
    sessions_per_key: int | None = option(
        None,
        "sessions open at a time of one of several API keys; not given: half of max_sessions; "
        "0: no limit",
    )
    watchers_per_key: int = option(
        8, "streams of events of one of several API keys at a time; 0: no limit"
    )
    max_watchers: int = option(64, "streams of events at a time; 0: no limit")
    max_message_mib: int | None = option(
        None,
        "the largest gRPC message or HTTP body, MiB; not given: 32, and 64 on a node that sees "
        "pictures",
    )
    chat_cache_mib: int = option(
        64, "MiB for tokens of chats; a next turn then encodes only new text; 0: none"
    )
    response_store_mib: int = option(
        64, "for stored responses of /v1/responses, MiB; 0: none is stored"
    )
    responses_per_key: int = option(
        1000, "stored responses of one API key, least recently used removed first; 0: no limit"
    )
    response_seconds: float = option(86400.0, "how long a response is stored")
    max_connections: int = option(1024, "open at a time, of HTTP and of gRPC each")
    allowed_hosts: str = option(
        "",
        "comma-separated HTTP host names besides loopback and the served address; *: any; "
        "none: any off loopback",
    )
    allowed_origins: str = option(
        "",
        "comma-separated origins of web pages for CORS, such as https://chat.example; *: "
        "any; none: same origin only",
    )
    whole_calls: bool = option(
        False,
        "send a tool call only when it is complete; never send a cut call",
    )
    log_format: str = option("text", "lines for people, or one JSON object a line", LOG_FORMATS)
    log_level: str = option("info", "lowest level in the log", LOG_LEVELS)
    otlp_endpoint: str = option(
        "", "http://HOST:PORT of an OpenTelemetry collector to send traces to; none: do not"
    )
    metrics_compat: str = option(
        "none", "other names for /metrics to offer beside its own", DIALECTS
    )
    metrics: str = option("on", "count requests and keep their history", ("on", "off"))
    served_model_name: str = option(
        "",
        "model name for HTTP clients, then aliases, comma-separated; *: any name; none: "
        "the folder's name",
    )
    generation_config: str = option(
        "auto",
        "HTTP defaults of temperature, top_p, top_k; auto: the model's "
        "generation_config.json; vllm: 1, 1, all tokens",
        unit="auto|vllm|DIR",
    )
    strict_fields: bool = option(
        False,
        "refuse unknown fields of chats and completions; else the header x-tasuki-unknown-fields "
        "and the log name them",
    )
    stop_strings: str = option(
        "answer",
        "place of stop strings in chats and Messages: answer (not in thoughts or tool "
        "calls) or everywhere",
        STOP_PLACES,
    )
    messages_thinking: str = option(
        "asked",
        "thoughts in Messages: asked: if the request has `thinking`; template: also if "
        "the chat template thinks",
        THINKING_REASONS,
    )
    tls_cert: str = option(
        "",
        "PEM file: the certificate chain of gRPC and HTTP; none: plain text",
        aliases=("--ssl-certfile",),
    )
    tls_key: str = option(
        "", "PEM file: the private key of tls_cert", aliases=("--ssl-keyfile",), unit="FILE"
    )
    tls_client_ca: str = option(
        "",
        "PEM file: callers must show a certificate signed by these",
        aliases=("--ssl-ca-certs",),
    )
    gateway: bool = option(
        False, "serve the smg gateway's engine protocol beside our own (needs tasuki[smg])"
    )
    insecure: bool = option(
        False, "serve a non-loopback address, and dial prefill nodes at one, in plain text"
    )
    drain_grace: float = option(
        0.0, "seconds after SIGTERM with a failing /ready; requests are still accepted"
    )
    drain_timeout: float = option(30.0, "most seconds for requests in flight after drain_grace")
    max_sessions: int = option(1024, "sessions open at a time")
    session_idle_seconds: float = option(3600.0, "a session idle so long may give way to a new one")
    session_pictures_mib: int = option(
        64, "MiB of picture files that a session keeps; all sessions keep 16 times as much"
    )
    engine_process: str = option(
        "auto",
        "engine in a thread or in its own process; auto: process on a GPU, with "
        "front_workers or tensor_parallel",
        ENGINE_PLACES,
    )
    front_workers: int = option(
        1,
        "server processes at the same ports; each has its share of max_connections and "
        "its own chat_cache_mib",
    )
    exit_with_parent: bool = option(False, "stop when stdin ends, as a launcher's child should")

    def __post_init__(self) -> None:
        for name in ("bind", "http_bind", "http_advertise"):
            if getattr(self, name):
                read_address(name, getattr(self, name))
        if self.http_etcd:
            check_url("http_etcd", self.http_etcd, "http://127.0.0.1:2379")
        if self.otlp_endpoint:
            check_url("otlp_endpoint", self.otlp_endpoint, "http://127.0.0.1:4317")
        for origin in _listed(self.allowed_origins):
            if origin != "*":
                check_origin("allowed_origins", origin)
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key go together: give both or neither")
        if self.tls_client_ca and not self.tls_cert:
            raise ValueError("tls_client_ca needs tls_cert and tls_key: there is no TLS without")
        for name in (
            *("requests_per_minute", "tokens_per_minute", "requests_per_key", "sessions_per_key"),
            *("watchers_per_key", "max_watchers", "responses_per_key"),
        ):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if not 1 <= self.message_bytes >> 20 <= 1024:
            raise ValueError(f"max_message_mib must be in [1, 1024], not {self.max_message_mib}")
        if self.chat_cache_mib < 0:
            raise ValueError(f"chat_cache_mib must be 0 or more, not {self.chat_cache_mib}")
        if self.response_store_mib < 0:
            raise ValueError(f"response_store_mib must be 0 or more, not {self.response_store_mib}")
        if not self.response_seconds > 0:
            raise ValueError(f"response_seconds must be over 0, not {self.response_seconds}")
        for name in ("response_seconds", "drain_grace", "drain_timeout", "session_idle_seconds"):
            if not 0 <= getattr(self, name) <= LONGEST_SECONDS:
                raise ValueError(
                    f"{name} must be 0 or more, {LONGEST_SECONDS:g} at most, not "
                    f"{getattr(self, name)}"
                )
        if self.max_connections < 1:
            raise ValueError(f"max_connections must be at least 1, not {self.max_connections}")
        if self.session_pictures_mib < 0:
            raise ValueError(
                f"session_pictures_mib must not be negative, but is {self.session_pictures_mib}"
            )
        if self.max_sessions < 1:
            raise ValueError(f"max_sessions must be at least 1, not {self.max_sessions}")
        if not 1 <= self.front_workers <= MOST_FRONT_WORKERS:
            raise ValueError(
                f"front_workers must be in [1, {MOST_FRONT_WORKERS}], not {self.front_workers}"
            )
        if self.front_workers > 1 and self.engine_process == "thread":
            raise ValueError(
                "front_workers need an engine in a process of its own: leave engine_process out, "
                "or have one front worker"
            )

    def engine_apart(self, device: str, ranks: int = 1) -> bool:
        """Return True if the engine has a process of its own, False if it is a thread. device: the
        engine's device, such as cpu. ranks: number of processes computing its model. Raises
        EngineConfigError for several ranks on a thread."""
        if ranks > 1 and self.engine_process == "thread":
            raise EngineConfigError(
                f"an engine of {ranks} ranks ends with any of them, and so has a process of its "
                "own: leave engine_process out, or give --tensor-parallel 1"
            )
        if self.engine_process == "auto":
            return self.front_workers > 1 or ranks > 1 or device.split(":")[0] != "cpu"
        return self.engine_process == "process"

    @property
    def message_bytes(self) -> int:
        """Return the most bytes of a gRPC message or an HTTP body."""
        given = self.max_message_mib
        return (_MESSAGE_MIB if given is None else given) * 2**20

    def seeing(self) -> "ServerConfig":
        """Return the settings of a node that sees pictures: longer messages, if unset."""
        given = self.max_message_mib
        return replace(self, max_message_mib=_MESSAGE_MIB_SEEING if given is None else given)

    @property
    def chat_cache_bytes(self) -> int:
        return self.chat_cache_mib * 2**20

    def model_names(self, folder: Path) -> tuple[str, ...]:
        """Return the listed names of the model for clients. Its folder's comes first if none or `*`
        leads."""
        listed = _listed(self.served_model_name)
        return listed if listed and listed[0] != "*" else (folder.resolve().name, *listed)

    @property
    def access(self) -> Access:
        """Return the servers' access rules. Raises ApiKeyError."""
        tls = None
        if self.tls_cert:
            tls = ServerTls(self.tls_cert, self.tls_key, self.tls_client_ca)
        keys = ApiKeys.load(Path(self.api_keys)) if self.api_keys else NO_KEYS
        keys = keys.sharing() if self.share_cache else keys
        size = self.message_bytes
        return Access(
            tls,
            self.api_key,
            self.insecure,
            keys,
            max_message_bytes=size,
            keyless=self._keyless,
            max_connections=self.max_connections,
            allowed_hosts=_listed(self.allowed_hosts),
            allowed_origins=_listed(self.allowed_origins),
        )

    @property
    def etcd_access(self) -> EtcdAccess:
        """Return the settings for access to etcd: its authority and this node's login. Raises
        EtcdAccessError."""
        return EtcdAccess.load(self.etcd_ca, self.etcd_login)

    @property
    def _keyless(self) -> Caller:
        """Return the caller of a call without an API key. A call from another host is admitted by
        its certificate, but its caller is no operator."""
        binds = [bind for bind in (self.bind, self.http_bind) if bind]
        here = all(is_loopback(bind.rpartition(":")[0].strip("[]")) for bind in binds)
        return ANYBODY if here else CERTIFIED

    @property
    def caller_limits(self) -> "CallerLimits":
        """Return new limits by caller. Their first minute begins now. A gateway's key stands for
        many callers."""
        from tasuki.server.auth.limits import CallerLimits, ConcurrencyCaps, RateLimits

        from .errors import RequestLimit, WatcherLimit

        gateways = frozenset({Scope.GATEWAY})
        return CallerLimits(
            RateLimits(self.requests_per_minute, self.tokens_per_minute, time.monotonic),
            ConcurrencyCaps(
                RequestLimit, "requests in flight", self.requests_per_key, uncapped=gateways
            ),
            ConcurrencyCaps(
                WatcherLimit, "streams of events", self.watchers_per_key, self.max_watchers
            ),
        )

    @property
    def key_sessions(self) -> int:
        """Return the most open sessions for one of several keys; 0: no limit; unset: half of
        max_sessions."""
        given = self.sessions_per_key
        return max(1, self.max_sessions // 2) if given is None else given


def _listed(names: str) -> tuple[str, ...]:
    """Return the names of a comma-separated list."""
    return tuple(filter(None, map(str.strip, names.split(","))))
