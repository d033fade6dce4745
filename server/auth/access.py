"""The access rules of a daemon's servers: TLS, API keys, bounds, and whether plain text may leave
the host."""

from dataclasses import dataclass, field

from tasuki.utils.tls import ServerTls

from .api_keys import NO_KEYS, ApiKeys
from .caller import ANYBODY, OWNER, Caller


@dataclass(frozen=True)
class Access:
    """tls: None serves plain text, which only loopback gets unless `insecure`. api_key: callers of
    gRPC and HTTP must bear it, or one of more_keys; where there is no key every call is `keyless`.
    max_message_bytes: of one message or body. max_connections: of HTTP, and of gRPC. allowed_hosts:
    names that HTTP may be called by besides the address that it serves. allowed_origins: of the web
    pages that may call HTTP."""

    tls: ServerTls | None = None
    api_key: str = field(default="", repr=False)
    insecure: bool = False
    more_keys: ApiKeys = NO_KEYS
    max_message_bytes: int = 32 * 2**20
    keyless: Caller = ANYBODY
    max_connections: int = 1024
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()

    @property
    def keys(self) -> ApiKeys:
        own = ApiKeys({OWNER: self.api_key} if self.api_key else {}, self.keyless)
        return own.joined(self.more_keys)


LOOPBACK_ONLY = Access()
