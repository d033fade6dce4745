"""Who may ask over HTTP: the bearers of the API key, where there is one. It is never
logged."""

import hmac
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from .http_errors import HttpRefusal

# Probes carry no secrets.
_OPEN_PATHS = frozenset({"/health", "/ready", "/"})
# The page without its data.
_OPEN_FOLDER = "/page/"


def require_key(api_key: str) -> Middleware:
    """Middleware that asks for `Authorization: Bearer API_KEY`; an empty key asks for nothing."""
    wanted = f"Bearer {api_key}".encode()

    @web.middleware
    async def check(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        allowed = not api_key or hmac.compare_digest(given, wanted)
        is_open = request.path in _OPEN_PATHS or request.path.startswith(_OPEN_FOLDER)
        if not allowed and not is_open:
            raise HttpRefusal(
                401, "invalid_api_key", "send this node's key as `Authorization: Bearer KEY`"
            )
        return await handler(request)

    return check
