"""`tools` of a Responses request: function definitions for chat templates, and the names to show in
calls.

Pure functions and immutable values; an error names the position of the wrong value.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasuki.model.grammar.grammar import GrammarKind
from tasuki.server.errors import InvalidField
from tasuki.server.openai.messages import parallel_calls, read_allowed_tools, read_mode
from tasuki.server.openai.request_fields import (
    RequestFields,
    ToolNames,
    is_among,
    optional,
    required,
)
from tasuki.server.openapi.responses_fields import MAX_NAMESPACE
from tasuki.server.text.chat_renderer import MAX_TOOLS
from tasuki.server.text.grammars.asked_grammar import AskedGrammar, of_text
from tasuki.server.text.grammars.call_grammar import OfferedTool, ToolChoice

CUSTOM_INPUT = "input"
"""Name of the only parameter of a free-text tool, in its definition for the template."""

_FUNCTION = "function"
_NULLABLE = ("description", "parameters", "strict")
_SEPARATOR = "__"
_SYNTAXES = {"lark": GrammarKind.LARK, "regex": GrammarKind.REGEX}


@dataclass(frozen=True)
class ToolName:
    """The name of a tool in the client's request. is_custom: True if the tool takes free text in
    place of arguments."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


@dataclass(frozen=True)
class ResponseTools:
    """The tools of a request. offered: tools shown to the model; empty if `tool_choice` is none.
    names: the client's names, by the names in the template. parallel: True if an answer may hold
    more than one call. choice: the calls the model may or must make."""

    offered: list[OfferedTool]
    names: Mapping[str, ToolName]
    parallel: bool
    choice: ToolChoice

    @property
    def definitions(self) -> list[Mapping[str, Any]]:
        """Return the tools' function definitions for the chat template."""
        return [tool.definition for tool in self.offered]

    def named(self, name: str) -> ToolName:
        """Return the client's name of a tool called by the model. An unknown tool keeps the model's
        name for it."""
        return self.names.get(name) or ToolName(name)


def template_name(name: str, namespace: str | None) -> str:
    """Return the tool's name with its namespace, if any, as a prefix, because templates have no
    namespaces."""
    if namespace is None:
        return name
    joined = namespace.removesuffix(_SEPARATOR)
    return f"{joined}{_SEPARATOR}{name}"


def read_response_tools(fields: RequestFields) -> ResponseTools:
    offered: list[OfferedTool] = []
    names: dict[str, ToolName] = {}
    shown_names = ToolNames()
    for index, tool in enumerate(fields.items("tools")):
        _add(tool, f"tools[{index}]", None, offered, names, shown_names)
    choice = fields.get("tool_choice")
    shown = [] if choice == "none" else offered
    return ResponseTools(shown, names, parallel_calls(fields), _choice(choice))


def echoed_tools(fields: RequestFields) -> list[dict[str, Any]]:
    """Return the request's tools for the response. Absent fields of functions are added as null,
    because the schema of Open Responses requires them. REQUIRES: read_response_tools() accepted the
    tools."""
    absent: dict[str, Any] = dict.fromkeys(_NULLABLE)
    return [
        {**absent, **tool} if tool["type"] == _FUNCTION else tool for tool in fields.items("tools")
    ]


def _choice(choice: Any) -> ToolChoice:
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return read_allowed_tools(RequestFields(choice), "tool_choice", _chosen_name)
    return read_mode(choice, _chosen_name, "function or custom")


def _chosen_name(item: Mapping[str, Any]) -> str | None:
    """Return the name in the template of a tool chosen by `tool_choice`. Return None for an invalid
    item."""
    name, namespace = item.get("name"), item.get("namespace")
    if item.get("type") not in ("function", "custom"):
        return None
    if not isinstance(name, str) or not isinstance(namespace, str | None):
        return None
    return template_name(name, namespace)


def _add(
    tool: Any,
    place: str,
    namespace: str | None,
    offered: list[OfferedTool],
    names: dict[str, ToolName],
    shown_names: ToolNames,
) -> None:
    if not isinstance(tool, dict) or not isinstance(tool.get("type"), str):
        raise InvalidField(place, "must be an object with a type")
    kind = tool["type"]
    if kind == "web_search" and tool.get("external_web_access") is False:
        # Agents send it by default. It has no effect, because there is nothing to search here.
        return
    if kind not in ("function", "custom", "namespace") or (kind == "namespace" and namespace):
        raise InvalidField(
            f"{place}.type", f"{kind!r:.60} is a tool of OpenAI's own: use function or custom"
        )
    name, description = tool.get("name"), tool.get("description")
    if not isinstance(name, str) or not isinstance(description, str | None):
        raise InvalidField(place, "must have a name, and a description only as a string")
    if kind == "namespace":
        inner = required(tool, "tools", list, place)
        if len(name) > MAX_NAMESPACE:
            # The names of all its tools contain the namespace's name.
            raise InvalidField(f"{place}.name", f"may have at most {MAX_NAMESPACE} characters")
        for index, item in enumerate(inner):
            _add(item, f"{place}.tools[{index}]", name, offered, names, shown_names)
        return
    if not is_among(tool.get("defer_loading"), (None, False)):
        raise InvalidField(f"{place}.defer_loading", "must be false: nothing searches for tools")
    if len(offered) >= MAX_TOOLS:
        raise InvalidField("tools", f"may hold at most {MAX_TOOLS}")
    shown = template_name(name, namespace)
    shown_names.add(shown, f"{place}.name")
    names[shown] = ToolName(name, namespace, kind == "custom")
    function = _custom(tool, place) if kind == "custom" else _function(tool, place)
    strict = bool(optional(tool, "strict", bool, place))
    offered.append(
        OfferedTool(
            {"type": "function", "function": {"name": shown, **function}},
            strict=strict,
            input=_input_grammar(tool, place) if kind == "custom" else None,
        )
    )


def _function(tool: dict[str, Any], place: str) -> dict[str, Any]:
    parameters = optional(tool, "parameters", dict, place)
    described = {} if tool.get("description") is None else {"description": tool["description"]}
    return {**described, **({} if parameters is None else {"parameters": parameters})}


def _custom(tool: dict[str, Any], place: str) -> dict[str, Any]:
    """Return the function definition of a free-text tool: the text is its only parameter. The
    description contains the text's grammar, because the model does not see the constraint on
    sampling."""
    description = tool.get("description") or ""
    grammar = _input_grammar(tool, place)
    if grammar is not None:
        syntax = grammar.kind.value
        description += f"\n\nThe input follows this {syntax} grammar:\n{grammar.source}"
    schema = {
        "type": "object",
        "properties": {CUSTOM_INPUT: {"type": "string"}},
        "required": [CUSTOM_INPUT],
    }
    return {"description": description.strip(), "parameters": schema}


def _input_grammar(tool: dict[str, Any], place: str) -> AskedGrammar | None:
    """Return the grammar of a free-text tool's text; None if any text is allowed. Raises
    InvalidField."""
    form = {"type": "text"} if tool.get("format") is None else tool["format"]
    if not isinstance(form, dict) or form.get("type") not in ("text", "grammar"):
        raise InvalidField(f"{place}.format", "must be text or a grammar")
    if form["type"] == "text":
        return None
    syntax = form.get("syntax")
    kind = _SYNTAXES.get(syntax) if isinstance(syntax, str) else None
    if kind is None:
        raise InvalidField(f"{place}.format.syntax", "must be lark or regex")
    return of_text(f"{place}.format.definition", kind, form.get("definition"))
