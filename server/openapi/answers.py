"""JSON Schemas of the replies of the HTTP routes. Pure.

test_openapi.py compares each schema with real replies. A release may add fields.
"""

from collections.abc import Sequence

from .common_fields import (
    NULL,
    OBJECT,
    STRING,
    TEXT,
    Fields,
    Schema,
    array,
    either,
    nonnull_array,
    object_of,
    one_of,
    or_null,
)

COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}


def _all(fields: Fields) -> Schema:
    """Return the schema of an object with all of `fields`, each required."""
    return object_of(fields, list(fields))


def _named(kind: str) -> Schema:
    return one_of([kind])


def _list_of(items: Schema) -> Schema:
    return _all(
        {
            "object": _named("list"),
            "data": nonnull_array(items),
            "first_id": TEXT,
            "last_id": TEXT,
            "has_more": FLAG,
        }
    )


_USAGE = _all(
    {
        "prompt_tokens": COUNT,
        "completion_tokens": COUNT,
        "total_tokens": COUNT,
        "prompt_tokens_details": object_of(
            {"cached_tokens": COUNT, "image_tokens": COUNT, "video_tokens": COUNT},
            ["cached_tokens"],
        ),
    }
)
_CALL = _all(
    {
        "id": STRING,
        "type": _named("function"),
        "function": _all({"name": STRING, "arguments": STRING}),
    }
)
_SAID = object_of(
    {
        "role": _named("assistant"),
        "content": TEXT,
        "reasoning_content": TEXT,
        "reasoning": TEXT,
        "tool_calls": nonnull_array(_CALL, least=1),
    },
    ["role", "content"],
)
_REASON: Schema = one_of(["stop", "length", "tool_calls", "abort"])


def _reply(kind: str, choice: Fields) -> Schema:
    common = {"index": COUNT, "finish_reason": _REASON, "logprobs": OBJECT}
    return _all(
        {
            "id": STRING,
            "object": _named(kind),
            "created": COUNT,
            "model": STRING,
            "choices": nonnull_array(_all({**common, **choice}), least=1),
            "usage": _USAGE,
        }
    )


CHAT_REPLY = _reply("chat.completion", {"message": _SAID})
COMPLETION_REPLY = _reply("text_completion", {"text": STRING})
_BLOCK: Schema = either(
    _all({"type": _named("text"), "text": STRING}),
    _all({"type": _named("thinking"), "thinking": STRING, "signature": STRING}),
    _all({"type": _named("tool_use"), "id": STRING, "name": STRING, "input": {"type": "object"}}),
)
_STOPS: Sequence[str] = (
    *("end_turn", "stop_sequence", "tool_use", "max_tokens", "model_context_window_exceeded"),
)
MESSAGE_REPLY = _all(
    {
        "id": STRING,
        "type": _named("message"),
        "role": _named("assistant"),
        "model": STRING,
        "content": nonnull_array(_BLOCK),
        "stop_reason": one_of(_STOPS),
        "stop_sequence": TEXT,
        "usage": _all(
            dict.fromkeys(
                (
                    *("input_tokens", "output_tokens", "cache_read_input_tokens"),
                    "cache_creation_input_tokens",
                ),
                COUNT,
            )
        ),
    }
)
MESSAGE_TOKENS = _all({"input_tokens": COUNT})
_ITEM = object_of(
    {
        "id": STRING,
        "type": one_of(["message", "reasoning", "function_call", "custom_tool_call"]),
        "status": STRING,
    },
    ["id", "type"],
)
_STATUSES = ("queued", "in_progress", "completed", "incomplete", "failed", "cancelled")
RESPONSE_REPLY = _all(
    {
        "id": STRING,
        "object": _named("response"),
        "created_at": COUNT,
        "status": one_of(_STATUSES),
        "model": STRING,
        "output": nonnull_array(_ITEM),
        "error": or_null({"type": "object"}),
        "incomplete_details": OBJECT,
        "usage": or_null(
            _all({"input_tokens": COUNT, "output_tokens": COUNT, "total_tokens": COUNT})
        ),
        "metadata": {"type": "object"},
        "tools": nonnull_array({"type": "object"}),
        "tool_choice": {},
    }
)
RESPONSE_TOKENS = _all({"object": _named("response.input_tokens"), "input_tokens": COUNT})
COMPACTION = _all(
    {
        "id": STRING,
        "object": _named("response.compaction"),
        "created_at": COUNT,
        "output": nonnull_array({"type": "object"}),
        "usage": {"type": "object"},
    }
)
LISTED_ITEM = object_of({"id": STRING, "type": STRING}, ["id", "type"])
ITEMS = _list_of(LISTED_ITEM)
CONVERSATION = _all(
    {
        "id": STRING,
        "object": _named("conversation"),
        "created_at": COUNT,
        "metadata": {"type": "object"},
    }
)
DELETED_CONVERSATION = _all(
    {"id": STRING, "object": _named("conversation.deleted"), "deleted": one_of([True])}
)
DELETED = _all({"id": STRING, "object": _named("response"), "deleted": one_of([True])})
MODEL = _all(
    {
        "id": STRING,
        "object": _named("model"),
        "created": COUNT,
        "owned_by": STRING,
        "root": STRING,
        "parent": NULL,
        "max_model_len": COUNT,
        "architecture": _all(
            {"input_modalities": nonnull_array(STRING), "output_modalities": nonnull_array(STRING)}
        ),
        "capabilities": _all({"vision": FLAG}),
        "type": _named("model"),
        "display_name": STRING,
        "created_at": STRING,
    }
)
MODELS = _list_of(MODEL)
TOKENS = object_of(
    {
        "count": COUNT,
        "max_model_len": COUNT,
        "tokens": nonnull_array(COUNT),
        "token_strs": array(STRING),
    },
    ["count", "max_model_len", "tokens"],
)
PROMPT_TEXT = _all({"prompt": STRING})
TOKENIZER = object_of(
    {"chat_template": TEXT, "model_max_length": COUNT, "tokenizer_class": STRING},
    ["chat_template", "model_max_length", "tokenizer_class"],
)
HEALTHY = _all({"status": _named("ok")})
VERSION = object_of({"version": STRING, "grpc": STRING}, ["version"])
UPDATED = _all(
    {
        "success": {"type": "boolean"},
        "message": STRING,
        "num_paused_requests": COUNT,
        "weight_version": STRING,
    }
)
PAUSED = _all({"status": STRING, "message": STRING})
SOME_OBJECT: Schema = {"type": "object"}
SOME_LIST: Schema = {"type": "array"}
ERROR = _all(
    {"error": _all({"message": STRING, "type": STRING, "param": TEXT, "code": or_null(STRING)})}
)
"""Schema of an error's body in OpenAI's shape."""
ANTHROPIC_ERROR = _all(
    {
        "type": _named("error"),
        "error": _all({"type": STRING, "message": STRING}),
        "request_id": STRING,
    }
)
