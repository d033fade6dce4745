"""Fields of POST /v1/responses, /v1/responses/input_tokens, /v1/responses/compact and
/v1/conversations: the schemas of what server/responses reads. Pure."""

from collections.abc import Mapping
from typing import Any

from .accounts import ACCOUNTS, MAX_ID
from .chats import VARIABLES
from .grammars import TEXT_FORMAT
from .response_items import INPUT, NEW_ITEMS, TOOL_CHOICE, TOOLS
from .sampling import (
    BUDGETS,
    DRAWS,
    MIN_P,
    PENALTIES,
    PRIORITY,
    REPETITION_PENALTY,
    SALT,
    STOP_TOKENS,
    TOP_LOGPROBS,
)
from .shapes import (
    ANY,
    FLAG,
    NULL,
    STRING,
    TEXT,
    Fields,
    Schema,
    array,
    either,
    integer,
    object_of,
    one_of,
    or_null,
    text,
)
from .unserved import unserved

ENCRYPTED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"
INCLUDED = (
    *(ENCRYPTED, LOGPROBS, "file_search_call.results", "web_search_call.results"),
    *("web_search_call.action.sources", "message.input_image.image_url"),
    *("computer_call_output.output.image_url", "code_interpreter_call.outputs"),
)
"""All but the first two are of items that no answer here has."""
PRESERVES = {None: None, "auto": None, "current_turn": False, "all_turns": True}
"""By the context of reasoning: as chats' preserve_thinking."""
AS_IT_IS: Mapping[str, tuple[Any, ...]] = {
    "truncation": ("disabled",),
    "context_management": ([],),
}
"""By field: the values that change nothing."""
_IGNORED: Fields = dict.fromkeys(
    (
        *("service_tier", "client_metadata", "access_programs"),
        # Of a cache's lifetime, and of padding that hides lengths.
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
"""Any other is refused."""
OF_INPUT_TOKENS: Fields = {
    **_IGNORED,
    **_PROMPT,
    **dict.fromkeys(_ANSWER, ANY),
    "text": or_null(object_of(_VERBOSITY)),
}
"""The same, where only the prompt is read."""
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
"""Any other is refused."""
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
