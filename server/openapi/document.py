"""The OpenAPI 3.1 document of a node's HTTP routes, at /openapi.json and /docs.

Built from the table of operations, the tables of request fields, and the table of routes and
scopes. An operation gives a route's purpose, request body and replies. test_openapi.py compares the
operations with the routes of server/auth/surfaces.py.

ApiDescription builds the document once, when all routes are known. One event loop's thread; the
rest is pure.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from aiohttp import web

from tasuki.server.auth.surfaces import HTTP, Unscoped
from tasuki.utils.program import package_version

from . import answers
from .answers import ANTHROPIC_ERROR, ERROR
from .anthropic_fields import COUNTED_MESSAGE, MESSAGE
from .common_fields import STRING, Fields, Schema, one_of
from .openai_fields import CHAT, COMPLETION, DETOKENIZE, PAUSE, PAUSE_MODES, TOKENIZE, UPDATE
from .responses_fields import (
    CHANGED_CONVERSATION,
    COMPACTED,
    COUNTED_RESPONSE,
    IMAGE_URLS,
    NEW_CONVERSATION,
    NEW_CONVERSATION_ITEMS,
    RESPONSE,
)

JSON = "application/json"
EVENTS = "text/event-stream"
HTML = "text/html"
METRICS = "text/plain"

Surface = tuple[str, str]
"""An HTTP method, and a route's path pattern as in server/auth/surfaces.py."""


@dataclass(frozen=True)
class Operation:
    """The description of one HTTP route. tag: heading of its group. answers: schema of the reply
    with status 200, by media type; empty for a stream of events, because OpenAPI 3.1 cannot
    describe one. body: schema of the JSON body; None: no body. query: schemas of the query's
    fields, by name. finds: True if the route may reply with 404 to a name in its path or body."""

    summary: str
    tag: str
    answers: Mapping[str, Schema]
    body: Schema | None = None
    query: Fields = field(default_factory=dict)
    finds: bool = False


def in_json(schema: Schema) -> Mapping[str, Schema]:
    return {JSON: schema}


def streamed(schema: Schema) -> Mapping[str, Schema]:
    """Return the reply schemas of a route with a JSON reply, or with a stream of events if the body
    has stream: true."""
    return {JSON: schema, EVENTS: {}}


def number_of(default: int, least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most, "default": default}


RESPONSES, CONVERSATIONS = "Responses", "Conversations"
_ITEMS_ASKED: Fields = {
    "limit": number_of(20, 1, 100),
    "order": one_of(["asc", "desc"]),
    "after": STRING,
}
_CONVERSATION, _ITEMS = "/v1/conversations/{name}", "/v1/conversations/{name}/items"

SOCKETS = frozenset({("GET", "/v1/responses")})
"""Routes of WebSockets. OpenAPI cannot describe them, so they have no operation."""
RESPONSE_OPERATIONS: Mapping[Surface, Operation] = {
    ("POST", "/v1/responses"): Operation(
        "Make a response", RESPONSES, streamed(answers.RESPONSE_REPLY), RESPONSE, finds=True
    ),
    ("POST", "/v1/responses/input_tokens"): Operation(
        "Count a prompt's tokens",
        RESPONSES,
        in_json(answers.RESPONSE_TOKENS),
        COUNTED_RESPONSE,
        finds=True,
    ),
    ("GET", "/v1/responses/{name}"): Operation(
        "Get a stored response",
        RESPONSES,
        in_json(answers.RESPONSE_REPLY),
        query={"stream": one_of(["false", "0"]), "starting_after": number_of(0, 0, 1 << 40)},
        finds=True,
    ),
    ("GET", "/v1/responses/{name}/input_items"): Operation(
        "List the items that a stored response answers",
        RESPONSES,
        in_json(answers.ITEMS),
        query={**_ITEMS_ASKED, "include": one_of([IMAGE_URLS])},
        finds=True,
    ),
    ("DELETE", "/v1/responses/{name}"): Operation(
        "Delete a stored response", RESPONSES, in_json(answers.DELETED), finds=True
    ),
    ("POST", "/v1/responses/compact"): Operation(
        "Compact a conversation", RESPONSES, in_json(answers.COMPACTION), COMPACTED, finds=True
    ),
    ("POST", "/v1/responses/{name}/cancel"): Operation(
        "End a response in the background", RESPONSES, in_json(answers.RESPONSE_REPLY), finds=True
    ),
    ("POST", "/v1/conversations"): Operation(
        "Begin a conversation", CONVERSATIONS, in_json(answers.CONVERSATION), NEW_CONVERSATION
    ),
    ("GET", _CONVERSATION): Operation(
        "Get a conversation", CONVERSATIONS, in_json(answers.CONVERSATION), finds=True
    ),
    ("POST", _CONVERSATION): Operation(
        "Change a conversation's metadata",
        CONVERSATIONS,
        in_json(answers.CONVERSATION),
        CHANGED_CONVERSATION,
        finds=True,
    ),
    ("DELETE", _CONVERSATION): Operation(
        "Delete a conversation", CONVERSATIONS, in_json(answers.DELETED_CONVERSATION), finds=True
    ),
    ("POST", _ITEMS): Operation(
        "Add items", CONVERSATIONS, in_json(answers.ITEMS), NEW_CONVERSATION_ITEMS, finds=True
    ),
    ("GET", _ITEMS): Operation(
        "List a conversation's items",
        CONVERSATIONS,
        in_json(answers.ITEMS),
        query=_ITEMS_ASKED,
        finds=True,
    ),
    ("GET", f"{_ITEMS}/{{item}}"): Operation(
        "Get an item", CONVERSATIONS, in_json(answers.LISTED_ITEM), finds=True
    ),
    ("DELETE", f"{_ITEMS}/{{item}}"): Operation(
        "Delete an item", CONVERSATIONS, in_json(answers.CONVERSATION), finds=True
    ),
}


_PAGE_FILES = (HTML, "text/css", "text/javascript", "image/svg+xml", METRICS)
_SPAN: Fields = {"seconds": number_of(300, 10, 3600), "points": number_of(150, 10, 600)}
_EVENTS_ASKED: Fields = {
    "after": {"type": "integer", "minimum": 0, "maximum": 1 << 62},
    "blocks": number_of(0, 0, 1),
}
_NODE, _MODEL, _OPERATOR, _FLEET = "Node", "Model", "Operator", "Fleet"
_CHATS, _MESSAGES = "Chats and completions", "Messages"


def _viewed(summary: str, schema: Schema = answers.SOME_OBJECT) -> Operation:
    return Operation(summary, _OPERATOR, in_json(schema))


def _of_fleet(summary: str, **query: Schema) -> Operation:
    return Operation(summary, _FLEET, in_json(answers.SOME_OBJECT), query=query)


_PROBES = dict.fromkeys(
    (("GET", path) for path in ("/health", "/healthz", "/ping")),
    Operation("Say whether the engine lives", _NODE, in_json(answers.HEALTHY)),
)
_VIEWS: Mapping[str, str] = {
    "/debug/requests": "Get the last requests",
    "/debug/sessions": "Get the last sessions",
    "/debug/handovers": "Get the last hand-overs",
    "/debug/evictions": "Get the last evictions",
}

OPERATIONS: Mapping[Surface, Operation] = {
    **_PROBES,
    ("GET", "/ready"): Operation(
        "Say whether the node takes requests", _NODE, in_json(answers.HEALTHY)
    ),
    ("GET", "/version"): Operation("Get the version", _NODE, in_json(answers.VERSION)),
    ("GET", "/openapi.json"): Operation("Get this document", _NODE, in_json(answers.SOME_OBJECT)),
    ("GET", "/docs"): Operation("Get the page of this document", _NODE, {HTML: STRING}),
    ("GET", "/"): Operation("Get the node's page", _NODE, {HTML: STRING}),
    ("GET", "/page/{name}"): Operation(
        "Get a file of the page", _NODE, dict.fromkeys(_PAGE_FILES, STRING), finds=True
    ),
    ("GET", "/metrics"): Operation("Get counters for Prometheus", _NODE, {METRICS: STRING}),
    ("POST", "/v1/chat/completions"): Operation(
        "Answer a chat", _CHATS, streamed(answers.CHAT_REPLY), CHAT, finds=True
    ),
    ("POST", "/v1/completions"): Operation(
        "Complete prompts", _CHATS, streamed(answers.COMPLETION_REPLY), COMPLETION, finds=True
    ),
    ("POST", "/v1/messages"): Operation(
        "Answer a message", _MESSAGES, streamed(answers.MESSAGE_REPLY), MESSAGE, finds=True
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        "Count a prompt's tokens",
        _MESSAGES,
        in_json(answers.MESSAGE_TOKENS),
        COUNTED_MESSAGE,
        finds=True,
    ),
    **RESPONSE_OPERATIONS,
    ("GET", "/v1/models"): Operation("List the model's names", _MODEL, in_json(answers.MODELS)),
    ("GET", "/v1/models/{name}"): Operation(
        "Get one of the model's names", _MODEL, in_json(answers.MODEL), finds=True
    ),
    ("POST", "/tokenize"): Operation(
        "Get the tokens of a prompt", _MODEL, in_json(answers.TOKENS), TOKENIZE, finds=True
    ),
    ("POST", "/detokenize"): Operation(
        "Get the text of tokens", _MODEL, in_json(answers.PROMPT_TEXT), DETOKENIZE, finds=True
    ),
    ("GET", "/tokenizer_info"): Operation(
        "Get the tokenizer's special tokens and template", _MODEL, in_json(answers.TOKENIZER)
    ),
    ("POST", "/update_weights_from_disk"): Operation(
        "Replace the weights", _MODEL, in_json(answers.UPDATED), UPDATE
    ),
    ("POST", "/pause_generation"): Operation(
        "Pause all requests", _MODEL, in_json(answers.PAUSED), PAUSE
    ),
    ("POST", "/continue_generation"): Operation(
        "Go on after a pause", _MODEL, in_json(answers.PAUSED)
    ),
    ("POST", "/pause"): Operation(
        "Pause all requests", _MODEL, in_json(answers.PAUSED), query={"mode": one_of(PAUSE_MODES)}
    ),
    ("POST", "/resume"): Operation("Go on after a pause", _MODEL, in_json(answers.PAUSED)),
    ("GET", "/debug/overview"): Operation(
        "Get the overview", _OPERATOR, in_json(answers.SOME_OBJECT), query=_SPAN
    ),
    ("GET", "/debug/stream"): Operation(
        "Follow the overview", _OPERATOR, {EVENTS: {}}, query=_SPAN
    ),
    ("GET", "/debug/events"): Operation(
        "Follow events one by one", _OPERATOR, {EVENTS: {}}, query=_EVENTS_ASKED
    ),
    **{("GET", path): _viewed(summary, answers.SOME_LIST) for path, summary in _VIEWS.items()},
    ("GET", "/debug/faults"): _viewed("Get the last faults"),
    ("GET", "/debug/requests/{name}"): Operation(
        "Get one of the last requests", _OPERATOR, in_json(answers.SOME_OBJECT), finds=True
    ),
    ("GET", "/debug/tree"): Operation(
        "Get nodes of the cache's tree",
        _OPERATOR,
        in_json(answers.SOME_LIST),
        query={"under": STRING},
        finds=True,
    ),
    ("GET", "/fleet/summary"): _of_fleet("Get the fleet's sums"),
    ("GET", "/fleet/nodes"): _of_fleet(
        "Get the nodes",
        filter=STRING,
        sort=STRING,
        offset=number_of(0, 0, 999_999_999),
        count=number_of(50, 0, 999_999_999),
    ),
    ("GET", "/fleet/links"): _of_fleet("Get the links between nodes", filter=STRING),
    ("GET", "/fleet/callers"): _of_fleet("Get the callers", filter=STRING),
}


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
    """Return the OpenAPI document of these routes. Routes without an operation in the table are
    left out. served: methods and path patterns of the routes. version: the node's version. keyed:
    True if the node requires keys from clients."""
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
    """Return the position of the route's operation in the table of operations."""
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
    """Return the ways to send a client's key to the route; none if the route needs no key."""
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
    """The node's OpenAPI document, and its web page. The document is empty until describe()."""

    def __init__(self) -> None:
        self._document = _Kept(b"{}", JSON, {})
        page = (files(__package__) / "docs.html").read_bytes()
        headers = {
            "Content-Security-Policy": _policy(page),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }
        self._page = _Kept(page, HTML, headers)

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/openapi.json", self._described), web.get("/docs", self._shown)]

    def describe(self, served: Iterable[Surface], *, keyed: bool) -> None:
        """Build the OpenAPI document of these routes. served, keyed: arguments of document()."""
        made = document(served, package_version(), keyed=keyed)
        body = json.dumps(made, separators=(",", ":")).encode()
        self._document = _Kept(body, JSON, {})

    async def _described(self, request: web.Request) -> web.Response:
        return self._document.answer(request)

    async def _shown(self, request: web.Request) -> web.Response:
        return self._page.answer(request)


class _Kept:
    """A constant HTTP body with its ETag."""

    def __init__(self, body: bytes, content_type: str, headers: dict[str, str]) -> None:
        self._body = body
        self._type = content_type
        self._tag = hashlib.sha256(body).hexdigest()[:32]
        self._headers = {"Cache-Control": "no-cache", "ETag": f'"{self._tag}"', **headers}

    def answer(self, request: web.Request) -> web.Response:
        """Return the HTTP reply: status 304 without the body if the client has the body's ETag."""
        held = request.if_none_match or ()
        if any(etag.value in (self._tag, "*") for etag in held):
            return web.Response(status=304, headers=self._headers)
        return web.Response(
            body=self._body, content_type=self._type, charset="utf-8", headers=self._headers
        )


def _policy(page: bytes) -> str:
    """Return a Content-Security-Policy for the web page: it runs only its own script and style, and
    sends queries only to its own node."""
    allowed: dict[str, list[str]] = {"script": [], "style": []}
    for kind, text in _INLINE.findall(page):
        digest = base64.b64encode(hashlib.sha256(text).digest()).decode()
        allowed[kind.decode()].append(f"'sha256-{digest}'")
    return (
        f"default-src 'none'; script-src {' '.join(allowed['script'])}; "
        f"style-src {' '.join(allowed['style'])}; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
