"""`tools` and `tool_choice` of a Messages request, as templates take definitions of functions.

Pure functions; an error names the place of the wrong value.
"""

from dataclasses import dataclass
from typing import Any

from tasuki.server.errors import InvalidField
from tasuki.server.openai.request_fields import RequestFields
from tasuki.server.text.chat_renderer import MAX_TOOLS

_CHANGES_THE_PROMPT = ("input_examples", "defer_loading", "allowed_callers")
_DIRECT = (["direct"],)


@dataclass(frozen=True)
class MessageTools:
    """definitions: in OpenAI's shape, which templates are written for; none where tool_choice is
    none. parallel: whether an answer may hold more than one call."""

    definitions: list[dict[str, Any]]
    parallel: bool


def read_message_tools(fields: RequestFields) -> MessageTools:
    tools = fields.items("tools")
    if len(tools) > MAX_TOOLS:
        raise InvalidField("tools", f"may hold at most {MAX_TOOLS}")
    definitions = [_definition(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    choice = fields.fields("tool_choice")
    kind = choice.text("type")
    if kind not in (None, "auto", "none"):
        raise InvalidField("tool_choice", "must be auto or none: no call can be forced here")
    parallel = not choice.flag("disable_parallel_tool_use")
    return MessageTools([] if kind == "none" else definitions, parallel)


def _definition(tool: Any, place: str) -> dict[str, Any]:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise InvalidField(place, "must be an object with a name")
    if tool.get("type") not in (None, "custom"):
        raise InvalidField(
            f"{place}.type", f"{tool['type']!r:.60} is a tool of Anthropic's own: use custom ones"
        )
    if tool.get("strict"):
        raise InvalidField(f"{place}.strict", "must be false: no grammar constrains a call here")
    for name in _CHANGES_THE_PROMPT:
        if tool.get(name) and tool[name] not in _DIRECT:
            raise InvalidField(f"{place}.{name}", "is not supported here: leave it out")
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        raise InvalidField(f"{place}.input_schema", "must be an object")
    description = tool.get("description")
    if not isinstance(description, str | None):
        raise InvalidField(f"{place}.description", "must be a string")
    described = {} if description is None else {"description": description}
    function = {"name": tool["name"], **described, "parameters": schema}
    return {"type": "function", "function": function}
