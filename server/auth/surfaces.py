"""The methods and routes that a node serves, and the scopes that each requires of a caller's key.

Owns no keys and no handlers. Pure. Invariant: a method or route that is not in the table is refused
to everybody, so that nobody can forget to list a new one. docs/security.md shows the table
(surface_table.py).
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from tasuki.server.errors import PermissionDenied

from .caller import Caller, Scope


class Unscoped(Enum):
    """Requirements other than a scope."""

    OPEN = "open"
    """Nothing: probes, and the page without its data."""
    ANY_KEY = "any key"
    PEER = "peer's certificate"
    """The TLS certificate of a node; no key."""


Needs = Unscoped | frozenset[Scope]
"""A key needs one of the scopes. The answer may depend on which one it has."""


def _needs(*scopes: Scope) -> Needs:
    return frozenset(scopes)


_CALLER = _needs(Scope.CALLER)
_METRICS = _needs(Scope.METRICS)
_GATEWAY = _needs(Scope.GATEWAY)
_OPERATOR = _needs(Scope.OPERATOR)
# Callers get their own requests, operators every request.
_OWN = _needs(Scope.CALLER, Scope.OPERATOR)


def _methods(service: str, needs: Mapping[str, Needs]) -> dict[str, Needs]:
    return {f"/{service}/{method}": wanted for method, wanted in needs.items()}


GRPC: Mapping[str, Needs] = MappingProxyType(
    {
        **_methods("tasuki.v1.Inference", {"Generate": _CALLER, "Abort": _OWN}),
        **_methods(
            "tasuki.v1.Session",
            dict.fromkeys(("Open", "Append", "Generate", "Fork", "Close"), _CALLER),
        ),
        **_methods(
            "tasuki.v1.CacheAdmin",
            {
                "Explain": _OWN,
                **dict.fromkeys(
                    ("Stats", "Tree", "Flush", "Drain", "Undrain", "ChangeRole", "WatchEvents"),
                    _OPERATOR,
                ),
            },
        ),
        **_methods(
            "tokenspeed.grpc.scheduler.TokenSpeedScheduler",
            {
                **dict.fromkeys(
                    (
                        "Generate",
                        "Abort",
                        "HealthCheck",
                        "GetModelInfo",
                        "GetServerInfo",
                        "GetLoads",
                        "GetTokenizer",
                        "SubscribeKvEvents",
                    ),
                    _GATEWAY,
                ),
                # A gateway calls these only when its own operator does.
                **dict.fromkeys(("FlushCache", "StartProfile", "StopProfile"), _OPERATOR),
            },
        ),
        **_methods(
            "tasuki.handover.v1.Handover",
            dict.fromkeys(("Connect", "Heartbeat", "Transfer", "Abort"), Unscoped.PEER),
        ),
        **_methods(
            "grpc.health.v1.Health", dict.fromkeys(("Check", "List", "Watch"), Unscoped.OPEN)
        ),
        **_methods(
            "grpc.reflection.v1alpha.ServerReflection", {"ServerReflectionInfo": Unscoped.OPEN}
        ),
    }
)
"""By a method's full name."""

ANY_METHOD = "*"

HTTP: Mapping[tuple[str, str], Needs] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                ("GET", "/health"),
                ("GET", "/ready"),
                ("GET", "/"),
                ("GET", "/page/{name}"),
            ),
            Unscoped.OPEN,
        ),
        ("GET", "/version"): Unscoped.ANY_KEY,
        ("GET", "/metrics"): _METRICS,
        **dict.fromkeys(
            (
                ("POST", "/v1/chat/completions"),
                ("POST", "/v1/completions"),
                ("GET", "/v1/models"),
                ("GET", "/v1/models/{name}"),
                ("POST", "/tokenize"),
                # Refused with the mend by a node that answers no clients.
                (ANY_METHOD, "/v1/{path}"),
                (ANY_METHOD, "/tokenize"),
            ),
            _CALLER,
        ),
        **{
            ("GET", f"/debug/{view}"): _OPERATOR
            for view in (
                "overview",
                "stream",
                "events",
                "requests",
                "requests/{name}",
                "sessions",
                "handovers",
                "evictions",
                "faults",
                "tree",
            )
        },
    }
)
"""By a method and a route's pattern as aiohttp writes it; HEAD is GET."""


def suffices(needs: Needs, caller: Caller | None) -> bool:
    """caller: None where the call had no known key."""
    if needs is Unscoped.OPEN or needs is Unscoped.PEER:
        return True
    if caller is None:
        return False
    return needs is Unscoped.ANY_KEY or not needs.isdisjoint(caller.scopes)


def is_for_peers(service: str) -> bool:
    """Whether a service is for nodes only: none of its methods needs a key."""
    ours = [needs for name, needs in GRPC.items() if name.startswith(f"/{service}/")]
    return bool(ours) and all(needs is Unscoped.PEER for needs in ours)


def denial(surface: str, needs: Needs, caller: Caller) -> PermissionDenied:
    """REQUIRES: not suffices(needs, caller)."""
    assert isinstance(needs, frozenset)
    wanted = " or ".join(sorted(scope.value for scope in needs))
    return PermissionDenied(
        f"{surface} needs the scope {wanted}, which {caller.name}'s key lacks: bear another key, "
        "or have the scope added to that one"
    )
