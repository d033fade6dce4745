"""`tools` and `tool_choice` of a Messages request, as templates take definitions of functions.

Pure functions; an error names the place of the wrong value.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasuki.server.errors import InvalidField
from tasuki.server.fields.messages import DIRECT
from tasuki.server.openai.request_fields import RequestFields, is_among
from tasuki.server.text.chat_renderer import MAX_TOOLS
from tasuki.server.text.grammars.offered_tool import OfferedTool
from tasuki.server.text.grammars.tool_choice import ToolChoice

_CHANGES_THE_PROMPT = ("input_examples", "defer_loading", "allowed_callers")


@dataclass(frozen=True)
class MessageTools:
    """offered: none where tool_choice is none. parallel: whether an answer may hold more than one
    call."""

    offered: list[OfferedTool]
    parallel: bool
    choice: ToolChoice

    @property
    def definitions(self) -> list[Mapping[str, Any]]:
        """In OpenAI's shape, which templates are written for."""
        return [tool.definition for tool in self.offered]


def read_message_tools(fields: RequestFields) -> MessageTools:
    tools = fields.items("tools")
    if len(tools) > MAX_TOOLS:
        raise InvalidField("tools", f"may hold at most {MAX_TOOLS}")
    offered = [_offered(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    choice = fields.fields("tool_choice")
    kind = choice.text("type")
    parallel = not choice.flag("disable_parallel_tool_use")
    shown = [] if kind == "none" else offered
    return MessageTools(shown, parallel, _choice(kind, choice))


def _choice(kind: str | None, choice: RequestFields) -> ToolChoice:
    if kind in (None, "auto", "none"):
        return ToolChoice()
    if kind == "any":
        return ToolChoice(forced=True)
    name = choice.text("name")
    if kind != "tool" or name is None:
        raise InvalidField("tool_choice", "must be auto, none, any, or tool with its name")
    return ToolChoice(forced=True, name=name)


def _offered(tool: Any, place: str) -> OfferedTool:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise InvalidField(place, "must be an object with a name")
    if tool.get("type") not in (None, "custom"):
        raise InvalidField(
            f"{place}.type", f"{tool['type']!r:.60} is a tool of Anthropic's own: use custom ones"
        )
    if not isinstance(tool.get("strict"), bool | None):
        raise InvalidField(f"{place}.strict", "must be true or false")
    for name in _CHANGES_THE_PROMPT:
        if not is_among(tool.get(name), DIRECT):
            raise InvalidField(f"{place}.{name}", "is not supported here: leave it out")
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        raise InvalidField(f"{place}.input_schema", "must be an object")
    description = tool.get("description")
    if not isinstance(description, str | None):
        raise InvalidField(f"{place}.description", "must be a string")
    described = {} if description is None else {"description": description}
    function = {"name": tool["name"], **described, "parameters": schema}
    return OfferedTool({"type": "function", "function": function}, bool(tool.get("strict")))
