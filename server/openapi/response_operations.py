"""Routes of Responses and conversations as operations of OpenAPI. Pure values."""

from collections.abc import Mapping

from tasuki.server.fields.responses import (
    CHANGED_CONVERSATION,
    COMPACTED,
    COUNTED_RESPONSE,
    NEW_CONVERSATION,
    NEW_CONVERSATION_ITEMS,
    RESPONSE,
)
from tasuki.server.fields.shapes import STRING, Fields, one_of

from . import answers
from .operation import Operation, Surface, in_json, number_of, streamed

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
