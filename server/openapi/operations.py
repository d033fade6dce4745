"""Every route of a node as an operation of OpenAPI: what it is for, its body, its answer. Pure
values.

tests/server/test_openapi.py compares the routes with server/auth/surfaces.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tasuki.server.fields.chats import CHAT
from tasuki.server.fields.completions import COMPLETION
from tasuki.server.fields.messages import COUNTED_MESSAGE, MESSAGE
from tasuki.server.fields.responses import COUNTED_RESPONSE, RESPONSE
from tasuki.server.fields.shapes import STRING, Fields, Schema, one_of
from tasuki.server.fields.tokens import DETOKENIZE, TOKENIZE

from . import answers

JSON = "application/json"
EVENTS = "text/event-stream"
HTML = "text/html"
METRICS = "text/plain"
_PAGE_FILES = (HTML, "text/css", "text/javascript", "image/svg+xml", METRICS)

Surface = tuple[str, str]
"""A method, and a route's pattern as server/auth/surfaces.py has it."""


@dataclass(frozen=True)
class Operation:
    """body: what is sent as JSON. answers: by media type, the schema of what comes with 200.
    query: by name. finds: may answer 404, of what its path or its body names."""

    summary: str
    tag: str
    answers: Mapping[str, Schema]
    body: Schema | None = None
    query: Fields = field(default_factory=dict)
    finds: bool = False


def _json(schema: Schema) -> Mapping[str, Schema]:
    return {JSON: schema}


def _streamed(schema: Schema) -> Mapping[str, Schema]:
    """Where the body has stream: true, events."""
    return {JSON: schema, EVENTS: STRING}


def _number(default: int, least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most, "default": default}


_SPAN: Fields = {"seconds": _number(300, 10, 3600), "points": _number(150, 10, 600)}
_EVENTS_ASKED: Fields = {
    "after": {"type": "integer", "minimum": 0, "maximum": 1 << 62},
    "blocks": _number(0, 0, 1),
}
_ITEMS_ASKED: Fields = {
    "limit": _number(20, 1, 100),
    "order": one_of(["asc", "desc"]),
    "after": STRING,
}
_NODE, _MODEL, _OPERATOR, _FLEET = "Node", "Model", "Operator", "Fleet"
_CHATS, _MESSAGES, _RESPONSES = "Chats and completions", "Messages", "Responses"


def _viewed(summary: str, schema: Schema = answers.SOME_OBJECT) -> Operation:
    return Operation(summary, _OPERATOR, _json(schema))


def _of_fleet(summary: str, **query: Schema) -> Operation:
    return Operation(summary, _FLEET, _json(answers.SOME_OBJECT), query=query)


_PROBES = dict.fromkeys(
    (("GET", path) for path in ("/health", "/healthz", "/ping")),
    Operation("Say whether the engine lives", _NODE, _json(answers.HEALTHY)),
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
        "Say whether the node takes requests", _NODE, _json(answers.HEALTHY)
    ),
    ("GET", "/version"): Operation("Get the version", _NODE, _json(answers.VERSION)),
    ("GET", "/openapi.json"): Operation("Get this document", _NODE, _json(answers.SOME_OBJECT)),
    ("GET", "/docs"): Operation("Get the page of this document", _NODE, {HTML: STRING}),
    ("GET", "/"): Operation("Get the node's page", _NODE, {HTML: STRING}),
    ("GET", "/page/{name}"): Operation(
        "Get a file of the page", _NODE, dict.fromkeys(_PAGE_FILES, STRING), finds=True
    ),
    ("GET", "/metrics"): Operation("Get counters for Prometheus", _NODE, {METRICS: STRING}),
    ("POST", "/v1/chat/completions"): Operation(
        "Answer a chat", _CHATS, _streamed(answers.CHAT_REPLY), CHAT, finds=True
    ),
    ("POST", "/v1/completions"): Operation(
        "Complete prompts", _CHATS, _streamed(answers.COMPLETION_REPLY), COMPLETION, finds=True
    ),
    ("POST", "/v1/messages"): Operation(
        "Answer a message", _MESSAGES, _streamed(answers.MESSAGE_REPLY), MESSAGE, finds=True
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        "Count a prompt's tokens",
        _MESSAGES,
        _json(answers.MESSAGE_TOKENS),
        COUNTED_MESSAGE,
        finds=True,
    ),
    ("POST", "/v1/responses"): Operation(
        "Make a response", _RESPONSES, _streamed(answers.RESPONSE_REPLY), RESPONSE, finds=True
    ),
    ("POST", "/v1/responses/input_tokens"): Operation(
        "Count a prompt's tokens",
        _RESPONSES,
        _json(answers.RESPONSE_TOKENS),
        COUNTED_RESPONSE,
        finds=True,
    ),
    ("GET", "/v1/responses/{name}"): Operation(
        "Get a stored response",
        _RESPONSES,
        _json(answers.RESPONSE_REPLY),
        query={"stream": one_of(["false", "0"])},
        finds=True,
    ),
    ("GET", "/v1/responses/{name}/input_items"): Operation(
        "List the items that a stored response answers",
        _RESPONSES,
        _json(answers.INPUT_ITEMS),
        query=_ITEMS_ASKED,
        finds=True,
    ),
    ("DELETE", "/v1/responses/{name}"): Operation(
        "Delete a stored response", _RESPONSES, _json(answers.DELETED), finds=True
    ),
    ("GET", "/v1/models"): Operation("List the model's names", _MODEL, _json(answers.MODELS)),
    ("GET", "/v1/models/{name}"): Operation(
        "Get one of the model's names", _MODEL, _json(answers.MODEL), finds=True
    ),
    ("POST", "/tokenize"): Operation(
        "Get the tokens of a prompt", _MODEL, _json(answers.TOKENS), TOKENIZE, finds=True
    ),
    ("POST", "/detokenize"): Operation(
        "Get the text of tokens", _MODEL, _json(answers.PROMPT_TEXT), DETOKENIZE, finds=True
    ),
    ("GET", "/tokenizer_info"): Operation(
        "Get the tokenizer's special tokens and template", _MODEL, _json(answers.TOKENIZER)
    ),
    ("GET", "/debug/overview"): Operation(
        "Get the overview", _OPERATOR, _json(answers.SOME_OBJECT), query=_SPAN
    ),
    ("GET", "/debug/stream"): Operation(
        "Follow the overview", _OPERATOR, {EVENTS: STRING}, query=_SPAN
    ),
    ("GET", "/debug/events"): Operation(
        "Follow events one by one", _OPERATOR, {EVENTS: STRING}, query=_EVENTS_ASKED
    ),
    **{("GET", path): _viewed(summary, answers.SOME_LIST) for path, summary in _VIEWS.items()},
    ("GET", "/debug/faults"): _viewed("Get the last faults"),
    ("GET", "/debug/requests/{name}"): Operation(
        "Get one of the last requests", _OPERATOR, _json(answers.SOME_OBJECT), finds=True
    ),
    ("GET", "/debug/tree"): Operation(
        "Get nodes of the cache's tree",
        _OPERATOR,
        _json(answers.SOME_LIST),
        query={"under": STRING},
        finds=True,
    ),
    ("GET", "/fleet/summary"): _of_fleet("Get the fleet's sums"),
    ("GET", "/fleet/nodes"): _of_fleet(
        "Get the nodes",
        filter=STRING,
        sort=STRING,
        offset=_number(0, 0, 999_999_999),
        count=_number(50, 0, 999_999_999),
    ),
    ("GET", "/fleet/links"): _of_fleet("Get the links between nodes", filter=STRING),
    ("GET", "/fleet/callers"): _of_fleet("Get the callers", filter=STRING),
}
