"""Fields of POST /v1/messages and /v1/messages/count_tokens: the schemas of the fields read by
server/anthropic. Pure."""

from typing import Any

from tasuki.server.text.chat_renderer import MAX_MESSAGES, MAX_TOOLS

from .common_fields import (
    ANY,
    DRAWS,
    FLAG,
    NULL,
    PRIORITY,
    SALT,
    SCHEMA,
    STOP_TEXTS,
    STRING,
    TEXT,
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
)
from .picture_fields import SOURCE_OF_MESSAGES, VIDEO

MAX_USER_ID = 256
"""Largest length of `metadata.user_id` in characters, as in Anthropic's API."""
EFFORTS = ("low", "medium", "high", "xhigh", "max")
DISPLAYS = ("summarized", "omitted", "updates")
ABSENT: tuple[Any, ...] = (None, [])
"""Accepted values of block fields (such as `citations`) not shown by any chat template: absent or
empty."""
DIRECT: tuple[Any, ...] = (None, False, [], ["direct"])
"""Accepted values of some tool fields (such as `allowed_callers`). Other values would change the
prompt."""
_CACHED: Schema = either(NULL, object_of({"type": one_of(["ephemeral"])}, ["type"]))


def _block(kind: str, fields: Fields, required: list[str]) -> Schema:
    own = {"type": one_of([kind]), "cache_control": _CACHED, **fields}
    return object_of(own, ["type", *required])


def _content(*blocks: Schema) -> Schema:
    return either(STRING, nonnull_array(either(*blocks)))


_TEXT_BLOCK = _block("text", {"text": STRING, "citations": one_of(ABSENT)}, ["text"])
_TEXTS = _content(_TEXT_BLOCK)
_PICTURE = _block("image", {"source": SOURCE_OF_MESSAGES}, ["source"])
_SHOWN = _content(_TEXT_BLOCK, _PICTURE, VIDEO)
_RESULT = _block(
    "tool_result", {"tool_use_id": STRING, "content": or_null(_SHOWN)}, ["tool_use_id"]
)
_THOUGHT = _block("thinking", {"thinking": STRING}, ["thinking"])
_USE = _block("tool_use", {"name": STRING, "input": {"type": "object"}}, ["name", "input"])
_MESSAGE: Schema = either(
    object_of(
        {"role": one_of(["user"]), "content": _content(_TEXT_BLOCK, _PICTURE, VIDEO, _RESULT)},
        ["role", "content"],
    ),
    object_of(
        {"role": one_of(["assistant"]), "content": _content(_TEXT_BLOCK, _THOUGHT, _USE)},
        ["role", "content"],
    ),
    object_of({"role": one_of(["system"]), "content": _TEXTS}, ["role", "content"]),
)
_TOOL: Schema = object_of(
    {
        "type": one_of([None, "custom"]),
        "name": STRING,
        "description": TEXT,
        "input_schema": {"type": "object"},
        "strict": FLAG,
        **dict.fromkeys(("input_examples", "defer_loading", "allowed_callers"), one_of(DIRECT)),
    },
    ["name", "input_schema"],
)
_CHOICE: Schema = either(
    NULL,
    object_of({"type": one_of([None, "auto", "none", "any"]), "disable_parallel_tool_use": FLAG}),
    object_of(
        {"type": one_of(["tool"]), "name": STRING, "disable_parallel_tool_use": FLAG},
        ["type", "name"],
    ),
)
_DISPLAY = one_of([None, *DISPLAYS])
_THINKING: Schema = either(
    NULL,
    object_of({"type": one_of(["disabled", "between_tools"]), "display": _DISPLAY}, ["type"]),
    object_of(
        {
            "type": one_of([None, "adaptive", "enabled"]),
            "display": _DISPLAY,
            "budget_tokens": integer(1),
        }
    ),
)
_EDIT: Schema = object_of(
    {"type": one_of(["clear_thinking_20251015"]), "keep": one_of(["all", {"type": "all"}])},
    ["type", "keep"],
)
_FORMAT: Schema = either(
    NULL, object_of({"type": one_of(["json_schema"]), "schema": SCHEMA}, ["type", "schema"])
)
_OUTPUT: Fields = {"effort": one_of([None, *EFFORTS]), "task_budget": NULL}
_IGNORED: Fields = dict.fromkeys(
    (
        *("service_tier", "inference_geo", "speed", "user_profile_id", "workspace_id"),
        *("diagnostics", "billing_policy", "fallback_credit_token", "anthropic_version"),
    ),
    ANY,
)
_PROMPT: Fields = {
    "model": TEXT,
    "messages": nonnull_array(_MESSAGE, least=1, most=MAX_MESSAGES),
    "system": or_null(_TEXTS),
    "tools": array(_TOOL, most=MAX_TOOLS),
    "tool_choice": _CHOICE,
    "thinking": _THINKING,
    "cache_control": _CACHED,
    "cache_salt": SALT,
    "context_management": or_null(object_of({"edits": array(_EDIT)})),
}
_ANSWER: Fields = {
    "max_tokens": {"type": "integer", "minimum": 1, "maximum": 2**63 - 1},
    "stop_sequences": STOP_TEXTS,
    "stream": FLAG,
    "metadata": or_null(object_of({"user_id": text(MAX_USER_ID)})),
    **DRAWS,
    "priority": PRIORITY,
    "output_format": _FORMAT,
}
OF_MESSAGES: Fields = {
    **_IGNORED,
    **_PROMPT,
    **_ANSWER,
    "output_config": or_null(object_of({**_OUTPUT, "format": _FORMAT})),
}
"""All known fields of POST /v1/messages. A request with any other field is rejected."""
OF_COUNTS: Fields = {
    **_IGNORED,
    **_PROMPT,
    **dict.fromkeys(_ANSWER, ANY),
    "output_config": or_null(object_of(_OUTPUT)),
}
"""The fields of POST /v1/messages/count_tokens. Only the fields of the prompt are read; fields of
the answer may have any value."""
MESSAGE: Schema = object_of(OF_MESSAGES, ["messages", "max_tokens"], NULL)
COUNTED_MESSAGE: Schema = object_of(OF_COUNTS, ["messages"], NULL)
