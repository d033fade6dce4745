"""Reader of a chat request's fields for the chat template: `messages`, `tools`, and template
variables.

Pure functions. An error names the position of the wrong value.

Variables come from `chat_template_kwargs` of vLLM and SGLang, and from fields with the same
meaning. The template decides their names and values. The template rejects a value with its own
error text. A variable without use in the template changes no prompt.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tasuki.server.errors import InvalidField, PromptTooLong
from tasuki.server.openapi.openai_fields import REASONING, TAKEN_VARIABLES, THINKING, THINKING_TYPES
from tasuki.server.pictures.clips import CLIP_PARTS
from tasuki.server.pictures.part_reader import CHAT_PARTS, PictureReader, check_part_type
from tasuki.server.text.chat_message import (
    ROLES,
    ChatMessage,
    ConversationBuilder,
    MessageContent,
    ToolCall,
)
from tasuki.server.text.chat_renderer import MAX_MESSAGES, MAX_TOOLS, effort_of_budget
from tasuki.server.text.grammars.call_grammar import OfferedTool, ToolChoice
from tasuki.server.text.json_reading import (
    MAX_DEPTH,
    holds_too_many_values,
    nested_too_deeply,
    read_arguments,
)

from .request_fields import RequestFields, ToolNames, optional

_FLAGS = ("enable_thinking", "preserve_thinking")
_EFFORT = "reasoning_effort"
NO_EFFORT = "none"
NameOf = Callable[[Mapping[str, Any]], str | None]


def read_template_variables(fields: RequestFields) -> dict[str, Any]:
    """Return the chat template's variables by name. A value in `chat_template_kwargs` overrides a
    request field of the same name. Raises InvalidField, also for variables of every rendering
    (TAKEN_VARIABLES)."""
    variables = _of_thinking(fields)
    for name in _FLAGS:
        if fields.get(name) is not None:
            variables[name] = fields.flag(name)
    of_reasoning = _effort(fields, variables)
    effort = fields.text(_EFFORT)
    if effort is None:
        effort = of_reasoning
    if effort == NO_EFFORT:
        variables.setdefault("enable_thinking", False)
    elif effort is not None:
        variables[_EFFORT] = effort
    given = fields.items_by_name("chat_template_kwargs")
    for name in TAKEN_VARIABLES:
        if name in given:
            raise InvalidField(f"chat_template_kwargs.{name}", "is set by the request itself")
    return {**variables, **given}


def _of_thinking(fields: RequestFields) -> dict[str, Any]:
    """Return the template variables set by the request's `thinking` object, in the form of
    DeepSeek's, GLM's and Anthropic's APIs. Raises InvalidField."""
    thinking = fields.fields("thinking", THINKING)
    kind = thinking.text("type")
    if kind not in THINKING_TYPES:
        raise InvalidField("thinking.type", "must be enabled, disabled or auto")
    cleared = thinking.get("clear_thinking")
    variables = {
        "enable_thinking": THINKING_TYPES[kind],
        "preserve_thinking": None if cleared is None else not thinking.flag("clear_thinking"),
        _EFFORT: effort_of_budget("thinking.budget_tokens", thinking.integer("budget_tokens")),
    }
    return {name: value for name, value in variables.items() if value is not None}


def _effort(fields: RequestFields, variables: dict[str, Any]) -> str | None:
    """Return the effort word of SGLang's `reasoning` object. Store its `enabled` in `variables` as
    `enable_thinking` unless set. Raises InvalidField."""
    reasoning = fields.fields("reasoning", REASONING)
    if reasoning.get("enabled") is not None:
        variables.setdefault("enable_thinking", reasoning.flag("enabled"))
    return reasoning.text("effort")


# OpenAI's newer name of the role; templates call it system.
_ROLE = {"developer": "system"}
# An assistant may only have called or thought, and a tool may return nothing.
_MAY_BE_EMPTY = ("assistant", "tool")
_SHOW_PICTURES = ("user", "tool")
# Clients may omit the type, because there is no other.
_FUNCTION = "function"
_OF_FUNCTIONS = {"description": str, "parameters": dict, "strict": bool}
"""Types of a function's optional fields."""
# The field with the text, by the part's type. The Responses API's names are with its items.
_TEXT_OF_PART = {
    "text": "text",
    "refusal": "refusal",
    "input_text": "text",
    "output_text": "text",
}


def read_chat_messages(
    fields: RequestFields, pictures: PictureReader | None = None
) -> list[ChatMessage]:
    """Return the messages of a chat request. Templates take one system message, the first. A later
    system message is joined to the message before it. After an assistant's message it becomes a
    user's. pictures: collects the pictures of users and tools; None: refuse them."""
    read = [
        _message(item, f"messages[{index}]", pictures)
        for index, item in enumerate(message_items(fields))
    ]
    if any(message.role == "system" for message in read[1:]):
        return _joined(read)
    return read


def message_items(fields: RequestFields) -> list[Any]:
    """Return the items of `messages`. Raises InvalidField for an empty list, PromptTooLong for too
    many messages."""
    messages = fields.items("messages")
    if not messages:
        raise InvalidField("messages", "is empty: send at least one message")
    if len(messages) > MAX_MESSAGES:
        complaint = f"has {len(messages)}: send at most {MAX_MESSAGES}, or join some"
        raise PromptTooLong(f"messages {complaint}", "messages")
    return messages


def _joined(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    builder = ConversationBuilder()
    for message in messages:
        if message.role == "system":
            builder.system(message.content)
        else:
            builder.message(message)
    return builder.messages


def read_tools(fields: RequestFields) -> list[dict[str, Any]]:
    """Return the request's tool definitions unchanged, but add a missing type. Return an empty list
    if `tool_choice` is "none". Raises InvalidField, also in this case."""
    tools, names = fields.items("tools", MAX_TOOLS), ToolNames()
    for index, tool in enumerate(tools):
        place = f"tools[{index}]"
        if not isinstance(tool, dict) or tool.get("type") not in (None, _FUNCTION):
            raise InvalidField(place, 'must be an object with "type": "function"')
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidField(f"{place}.function", "must be an object with a name")
        names.add(function["name"], f"{place}.function.name")
        for name, kind in _OF_FUNCTIONS.items():
            optional(function, name, kind, f"{place}.function")
    if fields.get("tool_choice") == "none":
        return []
    # Templates show a definition unchanged.
    return [tool if tool.get("type") else {**tool, "type": _FUNCTION} for tool in tools]


def read_offered_tools(fields: RequestFields) -> list[OfferedTool]:
    """Return the request's tools like read_tools(), each with its `strict` flag. Raises
    InvalidField."""
    return [OfferedTool(tool, bool(tool["function"].get("strict"))) for tool in read_tools(fields)]


def read_tool_choice(fields: RequestFields) -> ToolChoice:
    """Return the calls the model may or must make, from `tool_choice`. Raises InvalidField."""
    choice = fields.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = fields.fields("tool_choice").fields("allowed_tools")
        return read_allowed_tools(allowed, "tool_choice.allowed_tools", _function_name)
    return read_mode(choice, _function_name, "function")


def read_mode(choice: Any, name_of: NameOf, types: str) -> ToolChoice:
    """Return OpenAI's `tool_choice`: a mode (such as "auto"), or one tool to call. name_of:
    function from the choice to the tool's name; its result None means an invalid choice. types:
    allowed types of tools, for the error's text. Raises InvalidField."""
    if choice in (None, "auto", "none"):
        return ToolChoice()
    if choice == "required":
        return ToolChoice(forced=True)
    name = name_of(choice) if isinstance(choice, dict) else None
    if name is None:
        raise InvalidField(
            "tool_choice",
            f'must be "auto", "none", "required", or an object of type {types} with its name, or '
            "of type allowed_tools",
        )
    return ToolChoice(forced=True, name=name)


def read_allowed_tools(allowed: RequestFields, place: str, name_of: NameOf) -> ToolChoice:
    """Return OpenAI's `tool_choice` of type allowed_tools: the model may call only the listed
    tools. name_of: function from a listed item to the tool's name; its result None means an invalid
    item. place: position of the field, for errors. Raises InvalidField."""
    mode = allowed.text("mode")
    if mode not in ("auto", "required"):
        raise InvalidField(f"{place}.mode", "must be auto or required")
    listed = allowed.items("tools")
    names = [name_of(item) if isinstance(item, dict) else None for item in listed]
    found = frozenset(name for name in names if isinstance(name, str))
    if not found or None in names:
        raise InvalidField(f"{place}.tools", "must list tools by type and name, one at least")
    return ToolChoice(forced=mode == "required", allowed=found)


def _function_name(item: Mapping[str, Any]) -> str | None:
    function = item.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) and item.get("type") == "function" else None


def parallel_calls(fields: RequestFields) -> bool:
    """Return True if an answer may hold more than one tool call: the request's
    `parallel_tool_calls`, by default True."""
    return fields.flag("parallel_tool_calls", default=True)


def _message(item: Any, place: str, pictures: PictureReader | None) -> ChatMessage:
    if not isinstance(item, dict) or not isinstance(item.get("role"), str):
        raise InvalidField(place, "must be an object with a role")
    role: str = item["role"]
    if role not in (*ROLES, *_ROLE):
        known = ", ".join((*ROLES, *_ROLE))
        raise InvalidField(f"{place}.role", f"is {role!r:.60}: use one of {known}")
    role = _ROLE.get(role, role)
    calls = [] if item.get("tool_calls") is None else item["tool_calls"]
    if not isinstance(calls, list) or (calls and role != "assistant"):
        raise InvalidField(f"{place}.tool_calls", "must be a list, in an assistant's message")
    given, at = item.get("content"), f"{place}.content"
    shown: tuple[int, ...] = ()
    if pictures is not None and role in _SHOW_PICTURES and isinstance(given, list):
        content, shown = _with_pictures(given, at, pictures)
    else:
        content = read_content(given, at, optional=role in _MAY_BE_EMPTY)
    reasoning = _reasoning(item, place) if role == "assistant" else None
    tool_calls = tuple(
        _tool_call(call, f"{place}.tool_calls[{index}]") for index, call in enumerate(calls)
    )
    return ChatMessage(role, content, tool_calls, reasoning, shown)


def _with_pictures(
    parts: list[Any], place: str, pictures: PictureReader
) -> tuple[str, tuple[int, ...]]:
    """Return the text of the parts, and the places of their pictures."""
    shown = MessageContent()
    for index, part in enumerate(parts):
        at = f"{place}[{index}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in CHAT_PARTS:
            pictures.chat_part(part, at)
            shown.picture()
            continue
        if kind in CLIP_PARTS:
            shown.clip(pictures.clip(part, at))
            continue
        if isinstance(kind, str):
            check_part_type(kind, at)
        shown.text(_text(part, at))
    return shown.content, shown.pictures


def _reasoning(item: dict[str, Any], place: str) -> str | None:
    """Return the reasoning of an assistant's message, from the common field `reasoning_content` or
    vLLM's newer `reasoning`."""
    reasoning = optional(item, "reasoning", str, place)
    of_older_name = optional(item, "reasoning_content", str, place)
    return reasoning if of_older_name is None else of_older_name


def read_content(content: Any, place: str, *, optional: bool) -> str:
    """Return the text of a message's content: a string, or a list of text parts. optional: null
    counts as an empty text. place: position of the content, for errors. Raises InvalidField."""
    if isinstance(content, str):
        return content
    if content is None and optional:
        return ""
    if not isinstance(content, list):
        raise InvalidField(place, "must be a string or a list of text parts")
    return "".join(_text(part, f"{place}[{index}]") for index, part in enumerate(content))


def _text(part: Any, place: str) -> str:
    """Return the text of one content part. A plain string counts as a part, as in vLLM. place:
    position of the part, for errors."""
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind not in _TEXT_OF_PART:
        raise InvalidField(place, f"is of type {kind:.40}: only text is served")
    text = part.get(_TEXT_OF_PART[kind]) if isinstance(kind, str) else None
    if not isinstance(text, str):
        raise InvalidField(place, 'must be {"type": "text", "text": ...}: only text is served')
    return text


def _tool_call(call: Any, place: str) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidField(f"{place}.function", "must be an object with a name")
    arguments = {} if function.get("arguments") is None else function["arguments"]
    if isinstance(arguments, str):
        if holds_too_many_values(arguments.encode(errors="surrogatepass")):
            raise InvalidField(f"{place}.function.arguments", "holds too many values")
        arguments = read_arguments(arguments)
    if not isinstance(arguments, dict) or nested_too_deeply(arguments):
        raise InvalidField(
            f"{place}.function.arguments", f"must be a JSON object of {MAX_DEPTH} levels"
        )
    return ToolCall(function["name"], arguments)
