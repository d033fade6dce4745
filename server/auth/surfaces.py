"""The methods and routes served by a node, and the scopes each requires of a caller's key.

Owns no keys and no handlers. Pure. Invariant: a method or route missing from the table is refused
to every caller. A new method or route therefore cannot be served before it is listed.
docs/security.md shows the table (scripts/docs/surface_table.py).
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from tasuki.server.errors import PermissionDenied

from .callers import Caller, Scope


class Unscoped(Enum):
    """Requirements of a method or route other than a key's scope."""

    OPEN = "open"
    """No requirement: probes, and pages without their data."""
    ANY_KEY = "any key"
    PEER = "peer's certificate"
    """Requirement: the TLS certificate of a node; no key."""


Needs = Unscoped | frozenset[Scope]
"""The requirement of a method or route. A set of scopes needs a key with one of them. The answer
may depend on this scope."""


def _needs(*scopes: Scope) -> Needs:
    return frozenset(scopes)


_CALLER = _needs(Scope.CALLER)
_METRICS = _needs(Scope.METRICS)
_GATEWAY = _needs(Scope.GATEWAY)
_OPERATOR = _needs(Scope.OPERATOR)
_WEIGHTS = _needs(Scope.WEIGHTS)
# Callers get their own requests, operators every request.
_OWN = _needs(Scope.CALLER, Scope.OPERATOR)


_SCHEDULER = "tokenspeed.grpc.scheduler.TokenSpeedScheduler"
_METHODS: tuple[tuple[str, Needs, str], ...] = (
    ("tasuki.v1.Inference", _CALLER, "Generate"),
    ("tasuki.v1.Inference", _OWN, "Abort"),
    ("tasuki.v1.Session", _CALLER, "Open Append Generate Fork Close Load HandBack"),
    ("tasuki.v1.CacheAdmin", _OWN, "Explain"),
    ("tasuki.v1.CacheAdmin", _OPERATOR, "Stats Tree Flush Drain Undrain ChangeRole WatchEvents"),
    (_SCHEDULER, _GATEWAY, "Generate Abort HealthCheck GetModelInfo GetServerInfo GetLoads"),
    (_SCHEDULER, _GATEWAY, "GetTokenizer SubscribeKvEvents"),
    # A gateway calls these only for its own operator.
    (_SCHEDULER, _OPERATOR, "FlushCache StartProfile StopProfile"),
    ("tasuki.handover.v1.Handover", Unscoped.PEER, "Connect Heartbeat Transfer Abort Usable"),
    ("tasuki.handover.v1.Handover", Unscoped.PEER, "TakeOver Pictures"),
    ("grpc.health.v1.Health", Unscoped.OPEN, "Check List Watch"),
    ("grpc.reflection.v1alpha.ServerReflection", Unscoped.OPEN, "ServerReflectionInfo"),
)
GRPC: Mapping[str, Needs] = MappingProxyType(
    {f"/{service}/{name}": needs for service, needs, names in _METHODS for name in names.split()}
)
"""Requirements of gRPC methods, by the method's full name."""

ANY_METHOD = "*"

_ROUTES: tuple[tuple[str, Needs, str], ...] = (
    ("GET", Unscoped.OPEN, "/health /healthz /ping /ready / /page/{name} /docs"),
    ("GET", Unscoped.ANY_KEY, "/version /openapi.json"),
    ("GET", _METRICS, "/metrics"),
    ("POST", _CALLER, "/v1/chat/completions /v1/completions"),
    ("POST", _CALLER, "/v1/messages /v1/messages/count_tokens /v1/responses"),
    ("POST", _CALLER, "/v1/responses/input_tokens /v1/responses/compact"),
    ("POST", _CALLER, "/v1/responses/{name}/cancel"),
    ("GET", _CALLER, "/v1/responses /v1/responses/{name} /v1/responses/{name}/input_items"),
    ("DELETE", _CALLER, "/v1/responses/{name}"),
    ("POST", _CALLER, "/v1/conversations /v1/conversations/{name}"),
    ("POST", _CALLER, "/v1/conversations/{name}/items"),
    ("GET", _CALLER, "/v1/conversations/{name} /v1/conversations/{name}/items"),
    ("GET", _CALLER, "/v1/conversations/{name}/items/{item}"),
    ("DELETE", _CALLER, "/v1/conversations/{name} /v1/conversations/{name}/items/{item}"),
    ("GET", _CALLER, "/v1/models /v1/models/{name}"),
    ("POST", _CALLER, "/tokenize /detokenize"),
    ("GET", _CALLER, "/tokenizer_info"),
    ("POST", _WEIGHTS, "/update_weights_from_disk /pause_generation /continue_generation"),
    ("POST", _WEIGHTS, "/pause /resume"),
    # A node without clients' routes rejects these with the fix.
    (ANY_METHOD, _CALLER, "/v1/{path} /tokenize /detokenize /tokenizer_info"),
    ("GET", _OPERATOR, "/debug/overview /debug/stream /debug/events /debug/requests"),
    ("GET", _OPERATOR, "/debug/requests/{name} /debug/sessions /debug/handovers"),
    ("GET", _OPERATOR, "/debug/evictions /debug/faults /debug/tree"),
    # Routes of `tasuki dashboard`, not of a node.
    ("GET", _METRICS, "/fleet/summary /fleet/nodes /fleet/links /fleet/callers"),
)
HTTP: Mapping[tuple[str, str], Needs] = MappingProxyType(
    {(method, route): needs for method, needs, routes in _ROUTES for route in routes.split()}
)
"""Requirements of HTTP routes, by HTTP method and the route's pattern in aiohttp's form. HEAD is
under GET."""


def suffices(needs: Needs, caller: Caller | None) -> bool:
    """Return True if the caller's scopes meet `needs`; certificates are checked elsewhere. caller:
    None if the call had no known key."""
    if needs is Unscoped.OPEN or needs is Unscoped.PEER:
        return True
    if caller is None:
        return False
    return needs is Unscoped.ANY_KEY or not needs.isdisjoint(caller.scopes)


def is_for_peers(service: str) -> bool:
    """Return True if a gRPC service is for nodes only. Its methods then need a peer's certificate
    and no key."""
    ours = [needs for name, needs in GRPC.items() if name.startswith(f"/{service}/")]
    return bool(ours) and all(needs is Unscoped.PEER for needs in ours)


def denial(surface: str, needs: Needs, caller: Caller) -> PermissionDenied:
    """Return the error for a caller without a needed scope. surface: name of the method or route.
    REQUIRES: not suffices(needs, caller)."""
    assert isinstance(needs, frozenset)
    wanted = " or ".join(sorted(scope.value for scope in needs))
    return PermissionDenied(
        f"{surface} needs the scope {wanted}, which {caller.name}'s key lacks: bear another key, "
        "or have the scope added to that one"
    )
