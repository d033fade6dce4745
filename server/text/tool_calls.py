"""Reads the body of a <tool_call> as the Qwen3 family writes it.

Two spellings: {"name": ..., "arguments": {...}} (Qwen3) and <function=...><parameter=...> (Qwen3.5
and Qwen3-Coder). Pure functions.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .chat_message import ToolCall
from .json_bounds import nested_too_deeply

_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>(.*?)</parameter>", re.DOTALL)


def read_tool_call(body: str, tools: Sequence[Mapping[str, Any]]) -> ToolCall | None:
    """body: what stands between the tags. tools: the request's definitions, which have the types
    of parameters. None where the body is no call in either spelling."""
    body = body.strip()
    if body.startswith("{"):
        return _from_json(body)
    function = _FUNCTION.fullmatch(body)
    if function is None:
        return None
    name = function[1].strip()
    types = _parameter_types(name, tools)
    arguments = {
        key.strip(): _value(text, types.get(key.strip()))
        for key, text in _PARAMETER.findall(function[2])
    }
    return ToolCall(name, arguments)


def _from_json(body: str) -> ToolCall | None:
    try:
        call = json.loads(body)
    except (ValueError, RecursionError):
        return None
    name, arguments = call.get("name"), call.get("arguments", {})
    if not isinstance(name, str) or not isinstance(arguments, dict) or nested_too_deeply(arguments):
        return None
    return ToolCall(name, arguments)


def _parameter_types(name: str, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """JSON schema types of a function's parameters, as far as its definition is of that shape."""
    for tool in tools:
        function = tool.get("function")
        if not isinstance(function, Mapping) or function.get("name") != name:
            continue
        parameters = function.get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
        if isinstance(properties, Mapping):
            return {
                key: schema.get("type")
                for key, schema in properties.items()
                if isinstance(schema, Mapping)
            }
    return {}


def _value(text: str, kind: Any) -> Any:
    """One line break on either side belongs to the markup, not to the value."""
    text = text.removeprefix("\n").removesuffix("\n")
    if kind == "string":
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if nested_too_deeply(value) else value
