"""What chats take as `messages`, `tools` and `tool_choice`: the schemas of what
server/openai/messages.py reads. Pure."""

from tasuki.server.text.chat_renderer import MAX_MESSAGES, MAX_TOOLS

from .shapes import (
    FLAG,
    NULL,
    STRING,
    TEXT,
    Schema,
    array,
    either,
    nonnull_array,
    object_of,
    one_of,
)

_TEXT_PART: Schema = either(
    STRING,
    object_of(
        {"type": one_of(["text", "input_text", "output_text"]), "text": STRING}, ["type", "text"]
    ),
    object_of({"type": one_of(["refusal"]), "refusal": STRING}, ["type", "refusal"]),
)
CONTENT: Schema = either(STRING, nonnull_array(_TEXT_PART))
_NO_CALLS: Schema = array(most=0)
_CALL: Schema = object_of(
    {
        "function": object_of(
            {"name": STRING, "arguments": {"type": ["string", "object", "null"]}}, ["name"]
        )
    },
    ["function"],
)
_ASKED: Schema = object_of(
    {
        "role": one_of(["system", "developer", "user"]),
        "content": CONTENT,
        "tool_calls": _NO_CALLS,
    },
    ["role", "content"],
)
_ANSWERED: Schema = object_of(
    {
        "role": one_of(["assistant"]),
        "content": either(CONTENT, NULL),
        "reasoning_content": TEXT,
        "reasoning": TEXT,
        "tool_calls": array(_CALL),
    },
    ["role"],
)
_RETURNED: Schema = object_of(
    {"role": one_of(["tool"]), "content": either(CONTENT, NULL), "tool_calls": _NO_CALLS}, ["role"]
)
MESSAGES: Schema = nonnull_array(either(_ASKED, _ANSWERED, _RETURNED), least=1, most=MAX_MESSAGES)
_FUNCTION: Schema = object_of({"name": STRING, "strict": FLAG}, ["name"])
TOOLS: Schema = array(
    object_of({"type": one_of([None, "function"]), "function": _FUNCTION}, ["function"]),
    most=MAX_TOOLS,
)
_NAMED: Schema = object_of(
    {"type": one_of(["function"]), "function": object_of({"name": STRING}, ["name"])},
    ["type", "function"],
)
MODES: Schema = one_of(["auto", "required"])
TOOL_CHOICE: Schema = either(
    one_of([None, "auto", "none", "required"]),
    _NAMED,
    object_of(
        {
            "type": one_of(["allowed_tools"]),
            "allowed_tools": object_of(
                {"mode": MODES, "tools": nonnull_array(_NAMED, least=1)}, ["mode", "tools"]
            ),
        },
        ["type", "allowed_tools"],
    ),
)
