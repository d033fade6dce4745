"""Cross-origin requests: the pages in browsers that may call this server's API (--allowed-origins).

Pure. A browser asks by a preflight before it sends what a page wants to send; preflights bear no
key, and are answered before one is looked for. Invariant: without allowed origins nothing is
answered or added, so that a page of another origin reads nothing.
"""

from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web
from aiohttp.typedefs import Middleware

from .errors import HttpRefusal
from .request_ids import REQUEST_ID_HEADER

ANY_ORIGIN = "*"

_METHODS = "GET, POST, DELETE, OPTIONS"
_EXPOSED = f"{REQUEST_ID_HEADER}, Retry-After"
# Browsers keep a preflight's answer so long, and ask nothing meanwhile.
_MAX_AGE_SECONDS = "600"


class AllowedOrigins:
    def __init__(self, allowed: Sequence[str], paths: tuple[str, ...]) -> None:
        """allowed: origins as browsers send them, or ANY_ORIGIN. paths: what the paths of clients'
        routes begin with; the operator's page and its data are for their own origin."""
        self._allowed = frozenset(origin.rstrip("/").lower() for origin in allowed)
        self._paths = paths

    def middleware(self) -> Middleware:
        """Answers preflights, and refuses WebSockets of other origins' pages: browsers ask for no
        leave before they open one, and let the page read it."""

        @web.middleware
        async def answer(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            if "websocket" in request.headers.get("Upgrade", "").lower():
                self._check_socket(request)
            asked = request.headers.get("Access-Control-Request-Method")
            if request.method != "OPTIONS" or asked is None or not self._allows(request):
                return await handler(request)
            # Headers beside Authorization could be "*"; named, they cover it too.
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
        """For `on_response_prepare`: the leave to read the answer."""
        if self._allowed and request.path.startswith(self._paths):
            response.headers.add("Vary", "Origin")
            if self._allows(request):
                response.headers["Access-Control-Allow-Origin"] = request.headers["Origin"]
                response.headers["Access-Control-Expose-Headers"] = _EXPOSED

    def _check_socket(self, request: web.Request) -> None:
        """Raises HttpRefusal. What is no browser mostly sends no origin."""
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
