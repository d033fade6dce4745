"""What Responses take as `input`, `tools` and `tool_choice`: the schemas of what
server/responses/input_items.py and tools.py read. Pure."""

from tasuki.server.text.chat_renderer import MAX_MESSAGES, MAX_TOOLS

from .conversations import MODES
from .shapes import (
    FLAG,
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
)

MAX_NAMESPACE = 256
"""Characters of its name."""
_PART: Schema = either(
    object_of(
        {"type": one_of(["input_text", "output_text", "text"]), "text": STRING}, ["type", "text"]
    ),
    object_of({"type": one_of(["refusal"]), "refusal": STRING}, ["type", "refusal"]),
)
_TEXT: Schema = either(STRING, nonnull_array(_PART))
_SAID: Fields = {
    "role": one_of(["user", "assistant", "system", "developer"]),
    "content": _TEXT,
}


def _item(kind: str, fields: Fields, required: list[str]) -> Schema:
    return object_of({"type": one_of([kind]), **fields}, ["type", *required])


_CALLED: Fields = {"name": STRING, "namespace": TEXT}
_TEXTS: Schema = array(object_of({"text": STRING}, ["text"]))
_OUTPUT: Schema = either(_TEXT, {"type": "object"})
_ITEM: Schema = either(
    object_of({"type": one_of([None, "message"]), **_SAID}, ["role", "content"]),
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
"""Of a conversation, at once, as OpenAI's."""
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
