"""Checks each HTTP request against surfaces.py before its body is read.

Uses routes' patterns alone. A key is never logged. One event loop's thread.
"""

from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.abc import AbstractMatchInfo
from aiohttp.typedefs import Middleware

from tasuki.server.auth.api_keys import ApiKeys
from tasuki.server.auth.caller import NOBODY, Caller
from tasuki.server.auth.request_context import (
    CHAT,
    TEXT_COMPLETION,
    TRACE_HEADER,
    RequestContext,
)
from tasuki.server.auth.surfaces import HTTP, Unscoped, denial, suffices
from tasuki.server.auth.tenant import TENANT_KEY, tenant_of
from tasuki.server.errors import InvalidApiKey, NotServedHere

_CHATS = ("/v1/chat/", "/v1/messages", "/v1/responses")
_CALLER = web.RequestKey("caller", Caller)


def http_caller(request: web.Request) -> Caller:
    """The caller of a request that require_scope() has admitted."""
    caller: Caller = request.get(_CALLER, NOBODY)
    return caller


def require_scope(keys: ApiKeys) -> Middleware:
    """Middleware that refuses a request unless it bears a key of the route's scope:
    `Authorization: Bearer KEY`, or `x-api-key: KEY` as Anthropic's clients do."""

    @web.middleware
    async def check(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        caller = keys.caller(_borne(request))
        surface = surface_of(request.match_info)
        # Which paths exist is shown to callers with a key only.
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
    """The request's key as ApiKeys reads it; more than one where two headers differ. The scheme's
    case means nothing in HTTP."""
    borne = []
    for value in request.headers.getall("Authorization", []):
        scheme, space, key = value.partition(" ")
        borne.append(f"Bearer{space}{key}" if scheme.lower() == "bearer" else value)
    named = [f"Bearer {key}" for key in request.headers.getall("x-api-key", [])]
    # Clients with a key and a token that are the same send both.
    return borne if borne == named else [*borne, *named]


def surface_of(match: AbstractMatchInfo) -> tuple[str, str] | None:
    """The row's key in surfaces.HTTP; None for a path or method without a route."""
    if not isinstance(match, web.UrlMappingMatchInfo) or match.http_exception is not None:
        return None
    route = match.route
    assert route.resource is not None
    return "GET" if route.method == "HEAD" else route.method, route.resource.canonical


def http_request_context(request: web.Request) -> RequestContext:
    """Raises PermissionDenied, InvalidField."""
    caller = http_caller(request)
    tenant = tenant_of(caller, request.headers.getall(TENANT_KEY, []))
    operation = CHAT if request.path.startswith(_CHATS) else TEXT_COMPLETION
    return RequestContext(caller, request.headers.get(TRACE_HEADER, ""), tenant, operation)
