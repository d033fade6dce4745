"""The names by which a request may address this server.

A foreign name that resolves to this address makes a web page of one origin with this server in a
browser (DNS rebinding); only the Host header shows it. Pure.
"""

from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web
from aiohttp.typedefs import Middleware

from tasuki.server.bind import is_loopback

from .errors import HttpRefusal

ANY_HOST = "*"
# Probes address a pod by its IP address, and their answers hold no data.
_OPEN_PATHS = frozenset({"/health", "/healthz", "/ping", "/ready"})


def require_host(bound: str, allowed: Sequence[str]) -> Middleware:
    """Middleware that refuses a Host that is not served. bound: the served address; allowed: more
    names, without ports. Off loopback every name is served where none is listed."""
    checked = ANY_HOST not in allowed and (bool(allowed) or is_loopback(bound))
    names = frozenset(name.strip("[]").lower() for name in (bound, *allowed))

    @web.middleware
    async def check(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if checked and request.path not in _OPEN_PATHS:
            name = host_name(request.headers.get("Host", ""))
            if name not in names and not is_loopback(name):
                raise HttpRefusal(
                    421, "wrong_host", f"Host {name:.80} is not served here: see --allowed-hosts"
                )
        return await handler(request)

    return check


def host_name(header: str) -> str:
    """A Host header without its port and brackets, in lower case. Ports are no secret, and a tunnel
    changes them."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower().removesuffix(".")
