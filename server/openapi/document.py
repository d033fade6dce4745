"""The document of OpenAPI 3.1 that describes the routes of a node, at /openapi.json and /docs.

Made of the table of operations, the tables of fields, and the table of surfaces: what a route
needs, takes and may answer.

ApiDescription makes it once, when all routes are known. One event loop's thread; the rest is pure.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

from aiohttp import web

from tasuki.server.auth.surfaces import HTTP, Unscoped
from tasuki.utils.program import package_version

from .answers import ANTHROPIC_ERROR, ERROR
from .operations import EVENTS, JSON, OPERATIONS, Operation, Surface
from .shapes import STRING, Schema

_VERSION = "3.1.0"
_PARAMETER = re.compile(r"\{(\w+)\}")
_COUNTED_PATHS = ("/v1/", "/tokenize", "/detokenize", "/tokenizer_info")
_ANTHROPIC_PATH = "/v1/messages"
_CONVERSATIONS = "/v1/conversations"
_STATUSES: Mapping[int, str] = {
    400: "A field is missing, malformed or beyond its bounds",
    401: "The API key is missing or wrong",
    403: "The API key lacks the scope that the call needs",
    404: "What the path or the body names is not here",
    408: "The body stopped on its way",
    409: "The request was ended by somebody else, or its id is in flight",
    413: "The body is too large",
    415: "The body is not JSON, or it is encoded",
    417: "Nobody does what Expect asks for",
    421: "The Host is not served here",
    429: "The caller has asked for as much as it may",
    500: "Something failed here: see the node's log",
    501: "A node with front workers does not serve it",
    503: "The node is busy or draining",
    529: "The node is busy",
}
_ALWAYS = (400, 415, 417, 421, 500, 503)
_OF_BODIES = (408, 409, 413)
_HEADERS: Mapping[str, str] = {"x-request-id": "Of the request, for logs"}
_HEADERS_OF_ANSWERS: Mapping[str, str] = {
    "x-tasuki-unknown-fields": "Fields that are not known here",
    "x-tasuki-ignored-formats": "Formats of schemas that are not held",
}


def document(served: Iterable[Surface], version: str, *, keyed: bool) -> dict[str, Any]:
    """Return the document of these routes, those that are no operation left out. keyed: the node
    asks for keys."""
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Schema] = {"Error": ERROR, "AnthropicError": ANTHROPIC_ERROR}
    for surface in sorted(set(served) & OPERATIONS.keys(), key=_place):
        method, path = surface
        operation = OPERATIONS[surface]
        name = _operation_id(surface)
        if operation.body is not None:
            schemas[f"{name}_body"] = operation.body
        paths.setdefault(path, {})[method.lower()] = _described(surface, operation, keyed)
    schemes = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    return {
        "openapi": _VERSION,
        "info": {
            "title": "tasuki",
            "version": version,
            "description": "The HTTP routes of this node. A field that is null counts as absent.",
        },
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": schemes},
    }


def _place(surface: Surface) -> int:
    """The order of the table."""
    return list(OPERATIONS).index(surface)


def _operation_id(surface: Surface) -> str:
    method, path = surface
    words = re.findall(r"[a-z0-9_]+", path)
    return "_".join((method.lower(), *words))


def _described(surface: Surface, operation: Operation, keyed: bool) -> dict[str, Any]:
    path = surface[1]
    found: dict[str, Any] = {
        "operationId": _operation_id(surface),
        "summary": operation.summary,
        "tags": [operation.tag],
        "security": _security(surface) if keyed else [],
        "responses": {"200": _success(operation), **_refusals(surface, operation)},
    }
    parameters = [
        *(
            {"name": name, "in": "path", "required": True, "schema": {**STRING, "minLength": 1}}
            for name in _PARAMETER.findall(path)
        ),
        *({"name": name, "in": "query", "schema": s} for name, s in operation.query.items()),
    ]
    if parameters:
        found["parameters"] = parameters
    if operation.body is not None:
        reference = {"$ref": f"#/components/schemas/{_operation_id(surface)}_body"}
        found["requestBody"] = {"required": True, "content": {JSON: {"schema": reference}}}
    return found


def _security(surface: Surface) -> list[dict[str, list[str]]]:
    """Of clients' keys; none where the route asks for nothing."""
    return [] if HTTP[surface] is Unscoped.OPEN else [{"bearer": []}, {"key": []}]


def _success(operation: Operation) -> dict[str, Any]:
    content = {
        kind: {"schema": schema} if schema else {} for kind, schema in operation.answers.items()
    }
    is_generated = operation.body is not None and EVENTS in operation.answers
    said = {**_HEADERS, **(_HEADERS_OF_ANSWERS if is_generated else {})}
    headers = {name: {"description": text, "schema": STRING} for name, text in said.items()}
    return {"description": "What was asked for", "headers": headers, "content": content}


def _refusals(surface: Surface, operation: Operation) -> dict[str, Any]:
    path = surface[1]
    statuses = {*_ALWAYS}
    if HTTP[surface] is not Unscoped.OPEN:
        statuses |= {401, 403}
    if operation.finds:
        statuses |= {404}
    if operation.body is not None:
        statuses |= {*_OF_BODIES}
    if path.startswith(_COUNTED_PATHS) or "stream" in path or "events" in path:
        statuses |= {429}
    if path.startswith(_CONVERSATIONS):
        statuses |= {501}
    anthropic = path.startswith(_ANTHROPIC_PATH)
    if anthropic:
        statuses |= {529}
    error = "AnthropicError" if anthropic else "Error"
    content = {JSON: {"schema": {"$ref": f"#/components/schemas/{error}"}}}
    return {
        str(status): {"description": _STATUSES[status], "content": content}
        for status in sorted(statuses)
    }


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
