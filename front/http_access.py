"""Who may ask over HTTP: the bearers of an API key, where there is one. It is never
logged."""

from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from .api_keys import ApiKeys
from .caller import ANYBODY, Caller
from .http_errors import HttpRefusal

# Probes carry no secrets.
_OPEN_PATHS = frozenset({"/health", "/ready", "/"})
# The page without its data.
_OPEN_FOLDER = "/page/"


_CALLER = web.RequestKey("caller", Caller)


def http_caller(request: web.Request) -> Caller:
    """Who asks, once the middleware has let the request in."""
    caller: Caller = request.get(_CALLER, ANYBODY)
    return caller


def require_key(keys: ApiKeys) -> Middleware:
    """Middleware that asks for `Authorization: Bearer API_KEY` where there are keys."""

    @web.middleware
    async def check(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        caller = keys.caller(request.headers.get("Authorization"))
        is_open = request.path in _OPEN_PATHS or request.path.startswith(_OPEN_FOLDER)
        if caller is None and not is_open:
            raise HttpRefusal(
                401, "invalid_api_key", "send this node's key as `Authorization: Bearer KEY`"
            )
        request[_CALLER] = caller or ANYBODY
        return await handler(request)

    return check
