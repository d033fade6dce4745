"""Admission of HTTP requests by Host, by key and scope, and by a browser page's origin.

require_host(): the accepted Host names. In DNS rebinding, a foreign name resolves to this address,
and a browser treats its page and this server as one origin. Only the Host header reveals it. Pure.

require_scope(): checks each HTTP request against surfaces.py before its body is read. Uses only the
routes' patterns. A key is never logged. One event loop's thread.

AllowedOrigins: cross-origin requests by browser pages to this server's API (--allowed-origins).
Pure. A browser sends a preflight before a page's request. Preflights carry no key, and are answered
before the key check. Invariant: without allowed origins no preflight is answered and no header is
added, so pages of other origins cannot read answers.
"""

from collections.abc import Sequence

from aiohttp import web
from aiohttp.abc import AbstractMatchInfo
from aiohttp.typedefs import Handler, Middleware

from tasuki.server.auth.callers import NOBODY, ApiKeys, Caller
from tasuki.server.auth.surfaces import HTTP, Unscoped, denial, suffices
from tasuki.server.auth.tenants import (
    CHAT,
    TENANT_KEY,
    TEXT_COMPLETION,
    TRACE_HEADER,
    RequestContext,
    tenant_of,
)
from tasuki.server.bind import is_loopback
from tasuki.server.errors import InvalidApiKey, NotServedHere

from .errors import HttpRefusal
from .headers import REQUEST_ID_HEADER

ANY_HOST = "*"
# Probes address a pod by its IP address, and their answers hold no data.
_OPEN_PATHS = frozenset({"/health", "/healthz", "/ping", "/ready"})


def require_host(bound: str, allowed: Sequence[str]) -> Middleware:
    """Return a middleware to reject requests with other Host names, loopback and health checks
    excepted. bound: the served address. allowed: additional names, without ports. If the address is
    not loopback and `allowed` is empty, every name is accepted."""
    checked = ANY_HOST not in allowed and (bool(allowed) or is_loopback(bound))
    names = frozenset(name.strip("[]").lower() for name in (bound, *allowed))

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if checked and request.path not in _OPEN_PATHS:
            name = host_name(request.headers.get("Host", ""))
            if name not in names and not is_loopback(name):
                fault = (
                    f"Host {name:.80} is not served here" if name else "the header Host is missing"
                )
                raise HttpRefusal(421, "wrong_host", f"{fault}: see --allowed-hosts")
        return await handler(request)

    return check


def host_name(header: str) -> str:
    """Return the Host header in lower case, without port, brackets and final dot. The port is
    ignored, because it is no secret and a tunnel changes it."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower().removesuffix(".")


_CHATS = ("/v1/chat/", "/v1/messages", "/v1/responses")
_CALLER = web.RequestKey("caller", Caller)


def http_caller(request: web.Request) -> Caller:
    """Return the caller of a request admitted by require_scope(), or NOBODY."""
    caller: Caller = request.get(_CALLER, NOBODY)
    return caller


def require_scope(keys: ApiKeys) -> Middleware:
    """Return a middleware to reject requests without a key of the route's scope. Open routes need
    no key. Unlisted routes are always rejected. keys: the known API keys. A request sends
    `Authorization: Bearer KEY`, or `x-api-key: KEY` as Anthropic's clients do."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        caller = keys.caller(_borne(request))
        surface = surface_of(request.match_info)
        # Only callers with a key learn the existing paths.
        needs = HTTP.get(surface, Unscoped.ANY_KEY) if surface else Unscoped.ANY_KEY
        if not suffices(needs, caller):
            if caller is None:
                raise InvalidApiKey(
                    "send this node's key as `Authorization: Bearer KEY` or `x-api-key: KEY`"
                )
            raise denial(f"{request.method} {request.path}", needs, caller)
        if surface is not None and surface not in HTTP:
            raise NotServedHere(f"{request.method} {request.path} is not served here")
        request[_CALLER] = caller or NOBODY
        return await handler(request)

    return check


def _borne(request: web.Request) -> list[str]:
    """Return the request's API keys in the form ApiKeys expects; more than one if the headers
    differ. HTTP ignores the case of the scheme."""
    borne = []
    for value in request.headers.getall("Authorization", []):
        scheme, space, key = value.partition(" ")
        borne.append(f"Bearer{space}{key}" if scheme.lower() == "bearer" else value)
    named = [f"Bearer {key}" for key in request.headers.getall("x-api-key", [])]
    # Clients with an equal key and token send both.
    return borne if borne == named else [*borne, *named]


def surface_of(match: AbstractMatchInfo) -> tuple[str, str] | None:
    """Return the key in surfaces.HTTP for a matched route: (method, pattern), with HEAD as GET.
    Return None for a path or method without a route."""
    if not isinstance(match, web.UrlMappingMatchInfo) or match.http_exception is not None:
        return None
    route = match.route
    assert route.resource is not None
    return "GET" if route.method == "HEAD" else route.method, route.resource.canonical


def http_request_context(request: web.Request) -> RequestContext:
    """Return the request's RequestContext: its caller, tenant and trace. Raises PermissionDenied,
    InvalidField."""
    caller = http_caller(request)
    tenant = tenant_of(caller, request.headers.getall(TENANT_KEY, []))
    operation = CHAT if request.path.startswith(_CHATS) else TEXT_COMPLETION
    return RequestContext(caller, request.headers.get(TRACE_HEADER, ""), tenant, operation)


ANY_ORIGIN = "*"

_METHODS = "GET, POST, DELETE, OPTIONS"
_EXPOSED = f"{REQUEST_ID_HEADER}, Retry-After"
# Browsers keep a preflight's answer for this time, and ask nothing meanwhile.
_MAX_AGE_SECONDS = "600"


class AllowedOrigins:
    def __init__(self, allowed: Sequence[str], paths: tuple[str, ...]) -> None:
        """Set up the rules for other origins. allowed: origins as sent by browsers, or ANY_ORIGIN.
        paths: prefixes of clients' paths. The operator's page and its data are only for their own
        origin."""
        self._allowed = frozenset(origin.rstrip("/").lower() for origin in allowed)
        self._paths = paths

    def middleware(self) -> Middleware:
        """Return a middleware to answer preflights of allowed origins and to reject WebSockets of
        other origins' pages. Browsers send no preflight for a WebSocket, and let the page read
        it."""

        @web.middleware
        async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
            if "websocket" in request.headers.get("Upgrade", "").lower():
                self._check_socket(request)
            asked = request.headers.get("Access-Control-Request-Method")
            if request.method != "OPTIONS" or asked is None or not self._allows(request):
                return await handler(request)
            # For headers beside Authorization "*" would suffice; a list covers Authorization too.
            wanted = request.headers.get("Access-Control-Request-Headers", "")
            return web.Response(
                status=204,
                headers={
                    "Access-Control-Allow-Methods": _METHODS,
                    "Access-Control-Max-Age": _MAX_AGE_SECONDS,
                    **({"Access-Control-Allow-Headers": wanted} if wanted else {}),
                },
            )

        return answer

    async def mark(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add the header for the permission of an allowed origin's page to read the answer. For
        `on_response_prepare`."""
        if self._allowed and request.path.startswith(self._paths):
            response.headers.add("Vary", "Origin")
            if self._allows(request):
                response.headers["Access-Control-Allow-Origin"] = request.headers["Origin"]
                response.headers["Access-Control-Expose-Headers"] = _EXPOSED

    def _check_socket(self, request: web.Request) -> None:
        """Raise HttpRefusal if a WebSocket request comes from a page of an origin not allowed.
        Programs other than browsers mostly send no origin, and are accepted."""
        origin = request.headers.get("Origin")
        own = f"{request.scheme}://{request.host}".lower()
        if origin is not None and origin.lower() != own and not self._allows(request):
            raise HttpRefusal(
                403, "origin_not_allowed", f"Origin {origin:.80} may not: see --allowed-origins"
            )

    def _allows(self, request: web.Request) -> bool:
        origin = request.headers.get("Origin")
        if origin is None or not request.path.startswith(self._paths):
            return False
        return ANY_ORIGIN in self._allowed or origin.lower() in self._allowed
