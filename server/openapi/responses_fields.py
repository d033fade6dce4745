"""Fields of POST /v1/responses, /v1/responses/input_tokens, /v1/responses/compact and
/v1/conversations: the schemas of the fields read by server/responses. Pure.

`input`, `tools` and `tool_choice` are read by server/responses/input_items.py and tools.py.
"""

from collections.abc import Mapping
from typing import Any

from tasuki.server.text.chat_renderer import MAX_MESSAGES, MAX_TOOLS

from .common_fields import (
    ACCOUNTS,
    ANY,
    BUDGETS,
    DRAWS,
    FLAG,
    MAX_ID,
    MIN_P,
    NULL,
    OBJECT,
    PENALTIES,
    PRIORITY,
    REPETITION_PENALTY,
    SALT,
    STOP_TOKENS,
    STRING,
    TEXT,
    TEXT_FORMAT,
    TOP_LOGPROBS,
    Fields,
    Schema,
    array,
    either,
    integer,
    nonnull_array,
    object_of,
    one_of,
    or_null,
    text,
    unserved,
)
from .openai_fields import MODES, VARIABLES
from .picture_fields import PICTURE_OF_RESPONSES, VIDEO

MAX_NAMESPACE = 256
"""Largest length of a tool namespace's name in characters."""
_PART: Schema = either(
    object_of(
        {"type": one_of(["input_text", "output_text", "text"]), "text": STRING}, ["type", "text"]
    ),
    object_of({"type": one_of(["refusal"]), "refusal": STRING}, ["type", "refusal"]),
)
_TEXT: Schema = either(STRING, nonnull_array(_PART))
_SHOWN: Schema = either(STRING, nonnull_array(either(_PART, PICTURE_OF_RESPONSES, VIDEO)))
_SAID: Fields = {"role": one_of(["assistant", "system", "developer"]), "content": _TEXT}
_ASKED: Fields = {"role": one_of(["user"]), "content": _SHOWN}


def _item(kind: str, fields: Fields, required: list[str]) -> Schema:
    return object_of({"type": one_of([kind]), **fields}, ["type", *required])


_CALLED: Fields = {"name": STRING, "namespace": TEXT}
_TEXTS: Schema = array(object_of({"text": STRING}, ["text"]))
_OUTPUT: Schema = either(_SHOWN, {"type": "object"})
_ITEM: Schema = either(
    object_of({"type": one_of([None, "message"]), **_SAID}, ["role", "content"]),
    object_of({"type": one_of([None, "message"]), **_ASKED}, ["role", "content"]),
    _item("function_call", {**_CALLED, "arguments": STRING}, ["name", "arguments"]),
    _item("function_call_output", {"output": _OUTPUT}, ["output"]),
    _item("custom_tool_call", {**_CALLED, "input": STRING}, ["name", "input"]),
    _item("custom_tool_call_output", {"output": _OUTPUT}, ["output"]),
    _item("reasoning", {"content": _TEXTS, "summary": _TEXTS}, []),
    _item("item_reference", {"id": STRING}, ["id"]),
    _item("compaction", {"encrypted_content": STRING}, ["encrypted_content"]),
)
INPUT: Schema = either(STRING, nonnull_array(_ITEM, least=1, most=MAX_MESSAGES))
MOST_NEW_ITEMS = 20
"""Largest number of items a client may add to a conversation in one request, as in OpenAI's API."""
NEW_ITEMS: Schema = nonnull_array(_ITEM, most=MOST_NEW_ITEMS)
_NAMED: Fields = {"name": STRING, "description": TEXT}
_OFFERED: Fields = {**_NAMED, "strict": FLAG, "defer_loading": one_of([None, False])}
_GRAMMAR: Schema = object_of(
    {
        "type": one_of(["grammar"]),
        "syntax": one_of(["lark", "regex"]),
        "definition": {**STRING, "minLength": 1},
    },
    ["type", "syntax", "definition"],
)
_FORMAT: Schema = either(NULL, object_of({"type": one_of(["text"])}, ["type"]), _GRAMMAR)
_SEARCH = _item("web_search", {"external_web_access": one_of([False])}, ["external_web_access"])
_FUNCTION = _item("function", {**_OFFERED, "parameters": OBJECT}, ["name"])
_CUSTOM = _item("custom", {**_OFFERED, "format": _FORMAT}, ["name"])
_FLAT: Schema = either(_FUNCTION, _CUSTOM, _SEARCH)
_NAMESPACE = _item(
    "namespace",
    {**_NAMED, "name": {**STRING, "maxLength": MAX_NAMESPACE}, "tools": nonnull_array(_FLAT)},
    ["name", "tools"],
)
TOOLS: Schema = array(either(_FLAT, _NAMESPACE), most=MAX_TOOLS)
_CHOSEN: Schema = object_of({"type": one_of(["function", "custom"]), **_CALLED}, ["type", "name"])
TOOL_CHOICE: Schema = either(
    one_of([None, "auto", "none", "required"]),
    _CHOSEN,
    object_of(
        {
            "type": one_of(["allowed_tools"]),
            "mode": MODES,
            "tools": nonnull_array(_CHOSEN, least=1),
        },
        ["type", "mode", "tools"],
    ),
)


ENCRYPTED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"
IMAGE_URLS = "message.input_image.image_url"
INCLUDED = (
    *(ENCRYPTED, LOGPROBS, "file_search_call.results", "web_search_call.results"),
    *("web_search_call.action.sources", IMAGE_URLS),
    *("computer_call_output.output.image_url", "code_interpreter_call.outputs"),
)
"""Accepted values of `include`. All values except the first two name items contained in no reply of
this node."""
PRESERVES = {None: None, "auto": None, "current_turn": False, "all_turns": True}
"""Value of the chat field `preserve_thinking`, by the value of `reasoning.context`; None: the
template's default."""
AS_IT_IS: Mapping[str, tuple[Any, ...]] = {
    "truncation": ("disabled",),
    "context_management": ([],),
}
"""Harmless values of unsupported fields, by field: those with the same effect as no field."""
_IGNORED: Fields = dict.fromkeys(
    (
        *("service_tier", "client_metadata", "access_programs"),
        # The cache's lifetime, and padding to hide lengths.
        *("prompt_cache_retention", "prompt_cache_options", "stream_options"),
    ),
    ANY,
)
_VERBOSITY: Fields = {"verbosity": one_of([None, "medium"])}
_REASONING: Fields = {"context": one_of(PRESERVES), "effort": text(MAX_ID)}
_TURN: Fields = {
    "model": TEXT,
    "input": INPUT,
    "instructions": TEXT,
    "tools": TOOLS,
    "tool_choice": TOOL_CHOICE,
    "parallel_tool_calls": FLAG,
    "previous_response_id": text(MAX_ID),
    "reasoning": or_null(object_of(_REASONING)),
    "cache_salt": SALT,
    **VARIABLES,
    **ACCOUNTS,
}
_PROMPT: Fields = {
    **_TURN,
    "background": FLAG,
    "conversation": either(STRING, object_of({"id": STRING}, ["id"]), NULL),
    "include": array(one_of(INCLUDED)),
    "top_logprobs": TOP_LOGPROBS,
    "max_tool_calls": integer(),
    **unserved(AS_IT_IS),
}
_ANSWER: Fields = {
    **DRAWS,
    **PENALTIES,
    **STOP_TOKENS,
    "min_p": MIN_P,
    "repetition_penalty": REPETITION_PENALTY,
    **BUDGETS,
    "max_output_tokens": integer(1),
    "stream": FLAG,
    "store": FLAG,
    "priority": PRIORITY,
}
OF_RESPONSES: Fields = {
    **_IGNORED,
    **_PROMPT,
    **_ANSWER,
    "text": or_null(object_of({**_VERBOSITY, "format": TEXT_FORMAT})),
}
"""All known fields of POST /v1/responses. A request with any other field is rejected."""
OF_INPUT_TOKENS: Fields = {
    **_IGNORED,
    **_PROMPT,
    **dict.fromkeys(_ANSWER, ANY),
    "text": or_null(object_of(_VERBOSITY)),
}
"""The fields of POST /v1/responses/input_tokens. Only the fields of the prompt are read."""
RESPONSE: Schema = object_of(OF_RESPONSES, ["input"], NULL)
COUNTED_RESPONSE: Schema = object_of(OF_INPUT_TOKENS, ["input"], NULL)
OF_COMPACT: Fields = {
    **dict.fromkeys(
        (
            *("text", "include", "service_tier", "client_metadata"),
            *("prompt_cache_retention", "prompt_cache_options"),
        ),
        ANY,
    ),
    **_TURN,
    "input": either(INPUT, NULL),
    "priority": PRIORITY,
}
"""All known fields of POST /v1/responses/compact. A request with any other field is rejected."""
COMPACTED: Schema = {
    **object_of(OF_COMPACT, [], NULL),
    "anyOf": [{"required": ["input"]}, {"required": ["previous_response_id"]}],
}
_METADATA = ACCOUNTS["metadata"]
OF_NEW_CONVERSATION: Fields = {"items": either(NEW_ITEMS, NULL), "metadata": _METADATA}
OF_NEW_ITEMS: Fields = {"items": NEW_ITEMS, "include": ANY}
OF_CHANGED_CONVERSATION: Fields = {"metadata": _METADATA}
NEW_CONVERSATION: Schema = object_of(OF_NEW_CONVERSATION, [], NULL)
NEW_CONVERSATION_ITEMS: Schema = object_of(OF_NEW_ITEMS, ["items"], NULL)
CHANGED_CONVERSATION: Schema = object_of(OF_CHANGED_CONVERSATION, [], NULL)
