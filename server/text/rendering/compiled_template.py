"""A checkpoint's jinja template, compiled to run in a sandbox, with special token names in clients'
texts hidden.

CompiledTemplate owns the compiled template, and a copy to write marks at the ends of messages.
Immutable; any thread.

SpecialTokenGuard hides the names of added tokens in clients' strings while a chat template runs. It
owns the placeholders (marks) replacing the names. Immutable, one for each tokenizer; any thread.
Invariants: no string of a client (content, tool results, tool definitions, arguments, template
variables) reaches the template with such a name in it. The character MARK_BEGIN is hidden like a
name, so every mark in a rendered text is this node's own. A message is hidden in the same way
whatever surrounds it. In an assistant's content and reasoning only special tokens are hidden,
because the model wrote the other added tokens (<think>, <tool_call>) as text.

mark_template(), message_places(): find the ends of messages in a rendered conversation, by a
marking copy of the template. Pure. The copy writes a mark at the start of each loop's body if the
item is a mapping. It writes one after each such loop, and one before the opening of an answer.
Invariant: without the marks the text equals the output of the checkpoint's own template. Only loops
that write directly into the text are marked. A loop inside a macro or a block is not marked,
because the template may read or trim that text.

matches() searches by regular expressions in texts of megabytes, a slice at a time. `re` holds the
interpreter's lock until one search ends. Between two slices other threads, above all the event
loop's, can run. Pure, any thread.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import BuiltinMethodType
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from tasuki.server.text.chat_message import ROLES, ChatMessage, ChatTemplateError
from tasuki.server.text.tokenizer import Tokenizer

# A search for names takes a few milliseconds for a slice.
SLICE_CHARACTERS = 1 << 16

# Private-use characters: no template trims them or looks for them.
MARK_BEGIN = "\ue000"
MARK_END = "\ue001"

_HIDDEN = re.compile(f"{MARK_BEGIN}([0-9]+){MARK_END}")
_LONGEST_MARK = 24

_PICTURE = {"type": "image"}
"""A picture, as templates read it."""

Hide = Callable[[str], str]


class SpecialTokenGuard:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._names = [*tokenizer.added_tokens, MARK_BEGIN]
        self._marks = {
            name: f"{MARK_BEGIN}{number}{MARK_END}" for number, name in enumerate(self._names)
        }
        longest = max(map(len, self._names))
        self._all, self._special = (
            partial(substituted, any_of(names), self._mark, longest=longest)
            for names in (self._names, [*tokenizer.special_tokens, MARK_BEGIN])
        )

    def messages(self, messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
        """Return the messages as dicts for a template, with the names of added tokens hidden.
        `tool_calls` is set only if there are calls. Raises ChatTemplateError for an unknown
        role."""
        return [self._message(index, message) for index, message in enumerate(messages)]

    def tools(self, tools: Sequence[Mapping[str, Any]]) -> list[Any]:
        return [_hidden(tool, self._all) for tool in tools]

    def variables(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Return the template variables with the names of added tokens hidden in their values. Keys
        at the top stay, because a template reads variables by key."""
        return {name: _hidden(value, self._all) for name, value in variables.items()}

    def restore(self, text: str) -> str:
        if MARK_BEGIN not in text:
            return text
        return substituted(
            _HIDDEN, lambda match: self._names[int(match.group(1))], text, _LONGEST_MARK
        )

    def _message(self, index: int, message: ChatMessage) -> dict[str, Any]:
        if message.role not in ROLES:
            raise ChatTemplateError(
                f"messages[{index}].role is {message.role!r}: use one of {', '.join(ROLES)}"
            )
        shown: dict[str, Any] = {"role": message.role}
        if message.tool_calls:
            shown["tool_calls"] = [
                {
                    "type": "function",
                    "function": {
                        "name": self._all(call.name),
                        "arguments": _hidden(call.arguments, self._all),
                    },
                }
                for call in message.tool_calls
            ]
        hide = self._special if message.role == "assistant" else self._all
        if message.reasoning is not None:
            # Templates of different makers use one or the other.
            shown["reasoning_content"] = shown["reasoning"] = hide(message.reasoning)
        shown["content"] = hide(message.content)
        if message.pictures:
            # Parts of this node's own making: templates look for names of fields in them.
            shown["content"] = [
                _PICTURE if text is None else {"type": "text", "text": hide(text)}
                for text in message.content_parts()
            ]
        return shown

    def _mark(self, name: "re.Match[str]") -> str:
        return self._marks[name.group()]


def _hidden(value: Any, hide: Hide) -> Any:
    """Return a copy of a JSON value with every string, keys included, replaced by `hide`."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, list | tuple):
        return [_hidden(item, hide) for item in value]
    if isinstance(value, Mapping):
        return {_hidden(key, hide): _hidden(item, hide) for key, item in value.items()}
    return value


ITEM_MARK = "_tasuki_item_mark"
"""Name of the jinja filter to write the mark of a loop's item."""

_LOOP_END = f"{MARK_BEGIN}e{MARK_END}"
_OPENING = f"{MARK_BEGIN}o{MARK_END}"
MARK = re.compile(f"{MARK_BEGIN}([meo])([0-9]*){MARK_END}")
LONGEST_MARK = 24
_FLAG = "add_generation_prompt"


@dataclass(frozen=True)
class MessagePlaces:
    """The positions of messages in a rendered text, marks not counted. ends: for a count N, the
    position of the end of the first N messages. It is the begin of the next message, or the end of
    the loop over all messages. closed: length of the text without an answer's opening; None if only
    another rendering can show it."""

    ends: Mapping[int, int]
    closed: int | None


def item_mark(item: Any) -> str:
    """Return the mark of a loop's item. A mapping has one, because it may be a message; other items
    have an empty text."""
    return f"{MARK_BEGIN}m{id(item)}{MARK_END}" if isinstance(item, dict) else ""


def message_places(marked: str, messages: Sequence[Any]) -> MessagePlaces:
    """Return the positions of messages in a text rendered with marks. messages: the same objects as
    given to the template; a mark contains a message's id()."""
    numbers = {id(message): number for number, message in enumerate(messages)}
    ends: dict[int, int] = {}
    closed: int | None = None
    marks_before = 0
    last: int | None = None
    for mark in matches(MARK, marked, LONGEST_MARK):
        begin, end = mark.span()
        place = begin - marks_before
        marks_before += end - begin
        kind, item = mark.groups()
        if kind == "o":
            closed = place
        elif kind == "e":
            if last == len(messages) - 1:
                ends[len(messages)] = place
        elif (number := numbers.get(int(item))) is not None:
            last = number
            ends[last] = place
    ends.pop(0, None)
    return MessagePlaces(ends, closed)


def mark_template(template: nodes.Template) -> nodes.Template:
    """Add writing of marks to a parsed template, in place, and return it."""
    opens_last = _opens_last(template)
    template.body = _marked(template.body)
    if opens_last:
        template.body.insert(len(template.body) - 1, _constant(_OPENING))
    return template


def _opens_last(template: nodes.Template) -> bool:
    """Return True if the variable `add_generation_prompt` affects only the template's last branch.
    The text before this branch is then the output without an answer's opening."""
    last = template.body[-1] if template.body else None
    if not isinstance(last, nodes.If) or last.else_ or last.elif_:
        return False
    read = [name for name in template.find_all(nodes.Name) if name.name == _FLAG]
    return len(read) == 1 and read[0] is last.test


def _marked(body: list[nodes.Node]) -> list[nodes.Node]:
    found: list[nodes.Node] = []
    for node in body:
        found.append(node)
        if isinstance(node, nodes.If):
            node.body, node.else_ = _marked(node.body), _marked(node.else_)
            node.elif_ = [_marked_branch(branch) for branch in node.elif_]
        elif isinstance(node, nodes.For) and not node.recursive:
            node.body = _marked(node.body)
            if isinstance(node.target, nodes.Name):
                item = nodes.Name(node.target.name, "load")
                mark = nodes.Filter(item, ITEM_MARK, [], [], None, None)
                node.body.insert(0, nodes.Output([mark]))
                found.append(_constant(_LOOP_END))
    return found


def _marked_branch(branch: nodes.If) -> nodes.If:
    branch.body = _marked(branch.body)
    return branch


def _constant(text: str) -> nodes.Output:
    return nodes.Output([nodes.TemplateData(text)])


_DICT_ATTRIBUTES = frozenset(dir(dict))
# The base class handles the methods it wraps itself.
_STRING_METHODS = frozenset(
    name for name in dir(str) if not name.startswith("_") and not name.startswith("format")
)
# Names added by compiled templates to each call, for callables with such parameters.
_SCOPES = frozenset({"_loop_vars", "_block_vars"})
_NO_VARIABLES: Mapping[str, Any] = {}
# Errors raised by a template itself, or caused by an unexpected value in it.
_REFUSALS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    ArithmeticError,
)
_LOOP_ATTRIBUTES = frozenset(name for name in dir(LoopContext) if not name.startswith("_"))


class CompiledTemplate:
    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        """source: jinja text of the template. variables: names of special tokens, such as
        `bos_token`. Raises ChatTemplateError."""
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.filters[ITEM_MARK] = item_mark
        environment.globals["raise_exception"] = _raise_exception
        try:
            self._plain = environment.from_string(source)
            self._marking = environment.from_string(mark_template(environment.parse(source)))
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"chat_template does not compile: {error}") from error
        self._variables = dict(variables)

    def text(
        self,
        messages: Sequence[Any],
        open_answer: bool,
        tools: Sequence[Any] = (),
        variables: Mapping[str, Any] = _NO_VARIABLES,
    ) -> str:
        """Return the rendered text. open_answer: end with an answer's opening. variables: template
        variables of this request, by name. Raises ChatTemplateError."""
        return self._run(self._plain, messages, open_answer, tools, variables)

    def text_and_places(
        self,
        messages: Sequence[Any],
        open_answer: bool,
        tools: Sequence[Any],
        variables: Mapping[str, Any],
    ) -> tuple[str, MessagePlaces]:
        """Return the rendered text as text() does, and the positions of its messages. REQUIRES: no
        string in messages, tools and variables holds a mark. Raises ChatTemplateError."""
        marked = self._run(self._marking, messages, open_answer, tools, variables)
        places = message_places(marked, messages)
        text = substituted(MARK, lambda _: "", marked, LONGEST_MARK)
        return text, places if open_answer else replace(places, closed=len(text))

    def _run(
        self,
        template: jinja2.Template,
        messages: Sequence[Any],
        open_answer: bool,
        tools: Sequence[Any],
        variables: Mapping[str, Any],
    ) -> str:
        given = {
            **variables,
            "messages": messages,
            "add_generation_prompt": open_answer,
            # Templates test for tools by testing for a list.
            "tools": list(tools) or None,
            **self._variables,
        }
        try:
            return template.render(given)
        except _REFUSALS as error:
            raise ChatTemplateError(f"messages: the chat template refuses them: {error}") from error


class _Sandbox(ImmutableSandboxedEnvironment):
    """A jinja sandbox with fast paths for frequent accesses of templates: fields of messages, loops
    and namespaces, and methods of strings. Each gives the base class's result without its long
    checks."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if (kind is LoopContext and attribute in _LOOP_ATTRIBUTES) or (
            kind is str and attribute in _STRING_METHODS
        ):
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if type(obj) is Namespace:
            return not attr.startswith("_")
        return super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        of_string = type(__obj) is BuiltinMethodType and type(__obj.__self__) is str
        if of_string and kwargs.keys() <= _SCOPES:
            return __obj(*args)
        return super().call(__context, __obj, *args, **kwargs)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return the value as JSON: the jinja filter `tojson`. Its parameters are those used by
    checkpoints' templates."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def matches(
    pattern: "re.Pattern[str]", text: str, longest: int, slice_characters: int = SLICE_CHARACTERS
) -> Iterator["re.Match[str]"]:
    """Yield the matches of `pattern.finditer(text)`, searching a slice at a time. longest: largest
    number of characters of a match. REQUIRES: no match is empty or longer, and no match depends on
    the text around it."""
    position = 0
    for begin in range(0, len(text), slice_characters):
        end = begin + slice_characters
        for found in pattern.finditer(text, max(begin, position), end + longest - 1):
            if found.start() >= end:
                break
            yield found
            position = found.end()


def any_of(names: Iterable[str]) -> "re.Pattern[str]":
    """Return a regular expression matching the longest of the names at a place. Without names it
    matches nothing."""
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def substituted(
    pattern: "re.Pattern[str]",
    replace: Callable[["re.Match[str]"], str],
    text: str,
    longest: int,
    slice_characters: int = SLICE_CHARACTERS,
) -> str:
    """Return `pattern.sub(replace, text)`, searching a slice at a time. The requirements are those
    of matches()."""
    if len(text) <= slice_characters:
        return pattern.sub(replace, text)
    pieces = []
    position = 0
    for found in matches(pattern, text, longest, slice_characters):
        pieces += [text[position : found.start()], replace(found)]
        position = found.end()
    return "".join([*pieces, text[position:]])
