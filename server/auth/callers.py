"""Callers and their scopes, API keys, and the access rules of a daemon's servers.

Caller knows neither keys nor transports. Pure.

ApiKeys holds the keys of a file and the caller of each key. The keys never leave it: no repr, log
or error contains one. Pure except for reading the file.

Access holds TLS, API keys, size bounds, and whether plain text may leave the host.
"""

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from tasuki.utils.tls import ServerTls


class Scope(Enum):
    """A right granted to an API key. No scope includes another: a key lists every scope it has."""

    CALLER = "caller"
    """Scope: prompts, sessions, and the caller's own requests."""
    METRICS = "metrics"
    """Scope: numbers about all requests, without content: /metrics."""
    GATEWAY = "gateway"
    """Scope: the gateway's engine protocol. A call may name its tenant."""
    WEIGHTS = "weights"
    """Scope: pauses of all requests, and updates of the weights."""
    OPERATOR = "operator"
    """Scope: the node itself: its cache, its role, its drain, and every caller's requests."""


EVERY_SCOPE = frozenset(Scope)


@dataclass(frozen=True)
class Caller:
    """The identity and the rights of a caller. name: its name, may be logged. tenant: callers of
    one tenant share cached prefixes only among themselves. None: the caller shares them with all
    other callers without a tenant."""

    name: str
    scopes: frozenset[Scope] = frozenset({Scope.CALLER})
    tenant: str | None = None

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes

    @property
    def is_one_of_many(self) -> bool:
        """Return True if the caller's key is from a file of keys, False for the node's own callers.
        If True, its use takes from other callers."""
        return self.name not in RESERVED_NAMES


ANYBODY = Caller("anybody", EVERY_SCOPE)
"""Every caller of a node without API keys. Only loopback is served without keys."""

NOBODY = Caller("nobody", frozenset())
"""A caller without an API key, on a node with keys. It may use the methods and routes open to
all."""

CERTIFIED = Caller("certified", frozenset({Scope.CALLER, Scope.METRICS, Scope.GATEWAY}))
"""Every caller of a node without API keys, reachable from other hosts. A TLS certificate admits the
caller but does not identify it."""

OWNER = Caller("default", EVERY_SCOPE)
"""The caller with the API key of --api-key. It has every scope."""

RESERVED_NAMES = frozenset(caller.name for caller in (ANYBODY, NOBODY, CERTIFIED, OWNER))
"""Callers' names refused in a file of keys, because the node uses them itself."""


class ApiKeyError(ValueError):
    """The file of API keys cannot be used. The message names the line and the fix, never a key."""


class ApiKeys:
    def __init__(self, keys: Mapping[Caller, str], keyless: Caller = ANYBODY) -> None:
        """Set up the keys. keyless: the caller of every call if there are no keys."""
        self._keyless = keyless
        self._keys = keys
        self._bearers = {caller: f"Bearer {key}".encode() for caller, key in keys.items()}

    @staticmethod
    def load(path: Path) -> "ApiKeys":
        """Read a file of API keys. A line has a name, a key and optional scopes, separated by
        spaces. Commas separate the scopes; the default is `caller`. `#` begins a comment. Each
        caller is a tenant of its own. Raises ApiKeyError, also for no key, or a name or key given
        twice."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ApiKeyError(f"api_keys {path} cannot be read: {error}") from error
        keys: dict[Caller, str] = {}
        for number, line in enumerate(lines, 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            place = f"api_keys {path}:{number}"
            if len(words) not in (2, 3):
                raise ApiKeyError(f"{place}: write a name and a key, and scopes behind them")
            name, key = words[:2]
            if name in RESERVED_NAMES:
                raise ApiKeyError(f"{place}: the name {name} is taken: choose another")
            if name in (caller.name for caller in keys):
                raise ApiKeyError(f"{place}: {name} has a key already")
            if key in keys.values():
                raise ApiKeyError(f"{place}: {name}'s key is another's too")
            keys[_caller(place, name, words[2:])] = key
        if not keys:
            raise ApiKeyError(f"api_keys {path} has none: leave the setting out, or add a line")
        return ApiKeys(keys)

    def __bool__(self) -> bool:
        return bool(self._bearers)

    def joined(self, other: "ApiKeys") -> "ApiKeys":
        return ApiKeys({**self._keys, **other._keys}, self._keyless)

    def sharing(self) -> "ApiKeys":
        """Return the same keys for callers without tenants: the callers share cached prefixes."""
        shared = {replace(caller, tenant=None): key for caller, key in self._keys.items()}
        return ApiKeys(shared, self._keyless)

    def caller(self, authorization: Sequence[str | bytes]) -> Caller | None:
        """Return the caller of the authorization header; the keyless caller if there are no keys.
        Return None if its key is unknown, or if there is not exactly one header. The time taken
        does not depend on the matching key."""
        if not self._bearers:
            return self._keyless
        if len(authorization) != 1:
            return None
        (given,) = authorization
        if isinstance(given, str):
            given = given.encode(errors="surrogateescape")
        found = None
        for caller, wanted in self._bearers.items():
            if hmac.compare_digest(given, wanted):
                found = caller
        return found


def _caller(place: str, name: str, scopes: list[str]) -> Caller:
    """Return the caller described by one line of a file of keys. place: file and line, for errors.
    Raises ApiKeyError."""
    if not scopes:
        return Caller(name, tenant=name)
    try:
        return Caller(name, frozenset(map(Scope, scopes[0].split(","))), name)
    except ValueError as error:
        known = ",".join(scope.value for scope in Scope)
        raise ApiKeyError(f"{place}: {name}'s scopes must be some of {known}") from error


NO_KEYS = ApiKeys({})


@dataclass(frozen=True)
class Access:
    """The access rules of a daemon's servers. tls: None serves plain text, on loopback only unless
    `insecure`. api_key: callers of gRPC and HTTP must send it, or one of more_keys. keyless: the
    caller of every call if there is no key. max_message_bytes: bound of one message or body.
    max_connections: bound for HTTP and for gRPC, each. allowed_hosts: host names accepted by HTTP
    besides the served address. allowed_origins: origins of web pages allowed to call HTTP."""

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
