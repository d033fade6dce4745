"""`tools` of a Responses request, as templates take definitions of functions, and the names by
which a call is given back.

Pure functions and immutable values; an error names the place of the wrong value.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasuki.server.errors import InvalidField
from tasuki.server.openai.request_fields import RequestFields
from tasuki.server.text.chat_renderer import MAX_TOOLS

CUSTOM_INPUT = "input"
"""The one parameter by which a template is shown a tool of free text."""

_SEPARATOR = "__"


@dataclass(frozen=True)
class ToolName:
    """As the client named it. is_custom: it takes free text, no arguments."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


@dataclass(frozen=True)
class ResponseTools:
    """definitions: for the template; none where tool_choice is none. names: by the names of these.
    parallel: whether an answer may hold more than one call."""

    definitions: list[dict[str, Any]]
    names: Mapping[str, ToolName]
    parallel: bool

    def named(self, name: str) -> ToolName:
        """Of a tool that the model called, which may be none of those it was shown."""
        return self.names.get(name) or ToolName(name)


def template_name(name: str, namespace: str | None) -> str:
    """Templates know no namespaces."""
    if namespace is None:
        return name
    joined = namespace.removesuffix(_SEPARATOR)
    return f"{joined}{_SEPARATOR}{name}"


def read_response_tools(fields: RequestFields) -> ResponseTools:
    definitions: list[dict[str, Any]] = []
    names: dict[str, ToolName] = {}
    for index, tool in enumerate(fields.items("tools")):
        _add(tool, f"tools[{index}]", None, definitions, names)
    if len(definitions) > MAX_TOOLS:
        raise InvalidField("tools", f"may hold at most {MAX_TOOLS}")
    choice = fields.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise InvalidField("tool_choice", 'must be "auto" or "none": no call can be forced here')
    parallel = fields.get("parallel_tool_calls") is None or fields.flag("parallel_tool_calls")
    return ResponseTools([] if choice == "none" else definitions, names, parallel)


def _add(
    tool: Any,
    place: str,
    namespace: str | None,
    definitions: list[dict[str, Any]],
    names: dict[str, ToolName],
) -> None:
    if not isinstance(tool, dict) or not isinstance(tool.get("type"), str):
        raise InvalidField(place, "must be an object with a type")
    kind = tool["type"]
    if kind == "web_search" and tool.get("external_web_access") is False:
        # Agents send it unless they are set up otherwise. Nothing is here that it could search.
        return
    if kind not in ("function", "custom", "namespace") or (kind == "namespace" and namespace):
        raise InvalidField(
            f"{place}.type", f"{kind!r:.60} is a tool of OpenAI's own: use function or custom"
        )
    name, description = tool.get("name"), tool.get("description")
    if not isinstance(name, str) or not isinstance(description, str | None):
        raise InvalidField(place, "must have a name, and a description only as a string")
    if kind == "namespace":
        inner = tool.get("tools")
        if not isinstance(inner, list):
            raise InvalidField(f"{place}.tools", "must be a list")
        for index, item in enumerate(inner):
            _add(item, f"{place}.tools[{index}]", name, definitions, names)
        return
    if tool.get("defer_loading"):
        raise InvalidField(f"{place}.defer_loading", "must be false: nothing searches for tools")
    shown = template_name(name, namespace)
    names[shown] = ToolName(name, namespace, kind == "custom")
    function = _custom(tool, place) if kind == "custom" else _function(tool, place)
    definitions.append({"type": "function", "function": {"name": shown, **function}})


def _function(tool: dict[str, Any], place: str) -> dict[str, Any]:
    """`strict` is the default of this API's clients; no grammar constrains a call here."""
    parameters = tool.get("parameters")
    if not isinstance(parameters, dict | None):
        raise InvalidField(f"{place}.parameters", "must be an object")
    described = {} if tool.get("description") is None else {"description": tool["description"]}
    return {**described, **({} if parameters is None else {"parameters": parameters})}


def _custom(tool: dict[str, Any], place: str) -> dict[str, Any]:
    """Its text is one parameter. A grammar is shown to the model, and does not constrain it."""
    form = tool.get("format") or {"type": "text"}
    if not isinstance(form, dict) or form.get("type") not in ("text", "grammar"):
        raise InvalidField(f"{place}.format", "must be text or a grammar")
    description = tool.get("description") or ""
    if form["type"] == "grammar":
        syntax, definition = form.get("syntax"), form.get("definition")
        if not isinstance(syntax, str) or not isinstance(definition, str):
            raise InvalidField(f"{place}.format", "must have a syntax and a definition")
        description += f"\n\nThe input follows this {syntax} grammar:\n{definition}"
    schema = {
        "type": "object",
        "properties": {CUSTOM_INPUT: {"type": "string"}},
        "required": [CUSTOM_INPUT],
    }
    return {"description": description.strip(), "parameters": schema}
