"""Every route of a node as an operation of OpenAPI: what it is for, its body, its answer. Values.

test_openapi.py compares the routes with server/auth/surfaces.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from . import answers
from .anthropic_fields import COUNTED_MESSAGE, MESSAGE
from .openai_fields import CHAT, COMPLETION, DETOKENIZE, TOKENIZE
from .responses_fields import (
    CHANGED_CONVERSATION,
    COMPACTED,
    COUNTED_RESPONSE,
    NEW_CONVERSATION,
    NEW_CONVERSATION_ITEMS,
    RESPONSE,
)
from .shapes import STRING, Fields, Schema, one_of

JSON = "application/json"
EVENTS = "text/event-stream"
HTML = "text/html"
METRICS = "text/plain"

Surface = tuple[str, str]
"""A method, and a route's pattern as server/auth/surfaces.py has it."""


@dataclass(frozen=True)
class Operation:
    """body: what is sent as JSON. answers: by media type, the schema of what comes with 200; empty
    for events, since OpenAPI 3.1 has no schema of a stream. query: by name. finds: may answer 404,
    of what its path or its body names."""

    summary: str
    tag: str
    answers: Mapping[str, Schema]
    body: Schema | None = None
    query: Fields = field(default_factory=dict)
    finds: bool = False


def in_json(schema: Schema) -> Mapping[str, Schema]:
    return {JSON: schema}


def streamed(schema: Schema) -> Mapping[str, Schema]:
    """Where the body has stream: true, events."""
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
"""Routes of WebSockets: OpenAPI cannot describe them."""
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
        query=_ITEMS_ASKED,
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
