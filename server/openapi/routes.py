"""GET /openapi.json and GET /docs, as routes.

The document is made once, when all routes are known. One event loop's thread.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from importlib.resources import files

from aiohttp import web

from tasuki.utils.version import package_version

from .document import document
from .operation import Surface

_INLINE = re.compile(rb"<(script|style)>(.*?)</\1>", re.DOTALL)


class ApiDescription:
    """Describes nothing until describe()."""

    def __init__(self) -> None:
        self._document = _Kept(b"{}", "application/json", {})
        page = (files(__package__) / "docs.html").read_bytes()
        headers = {
            "Content-Security-Policy": _policy(page),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }
        self._page = _Kept(page, "text/html", headers)

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/openapi.json", self._described), web.get("/docs", self._shown)]

    def describe(self, served: Iterable[Surface], *, keyed: bool) -> None:
        """Make the document of these routes. keyed: as of document()."""
        made = document(served, package_version(), keyed=keyed)
        body = json.dumps(made, separators=(",", ":")).encode()
        self._document = _Kept(body, "application/json", {})

    async def _described(self, request: web.Request) -> web.Response:
        return self._document.answer(request)

    async def _shown(self, request: web.Request) -> web.Response:
        return self._page.answer(request)


class _Kept:
    """A body that stays the same, with its tag."""

    def __init__(self, body: bytes, content_type: str, headers: dict[str, str]) -> None:
        self._body = body
        self._type = content_type
        self._tag = hashlib.sha256(body).hexdigest()[:32]
        self._headers = {"Cache-Control": "no-cache", "ETag": f'"{self._tag}"', **headers}

    def answer(self, request: web.Request) -> web.Response:
        """Without the body where the client has it."""
        held = request.if_none_match or ()
        if any(etag.value in (self._tag, "*") for etag in held):
            return web.Response(status=304, headers=self._headers)
        return web.Response(
            body=self._body, content_type=self._type, charset="utf-8", headers=self._headers
        )


def _policy(page: bytes) -> str:
    """Nothing but the page's own script and style runs, and it asks its own node alone."""
    allowed: dict[str, list[str]] = {"script": [], "style": []}
    for kind, text in _INLINE.findall(page):
        digest = base64.b64encode(hashlib.sha256(text).digest()).decode()
        allowed[kind.decode()].append(f"'sha256-{digest}'")
    return (
        f"default-src 'none'; script-src {' '.join(allowed['script'])}; "
        f"style-src {' '.join(allowed['style'])}; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
