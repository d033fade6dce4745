"""Tools an answer may or must call, and a grammar for their calls.

CallGrammar makes the grammar of tool calls. Calls have the syntax taught by the model's template.
Arguments follow each tool's JSON schema, or a grammar of the tool's own. Pure functions.
server/text/parsing/ reads a call's text; this parser does not change the meaning of a call
following the grammar. For a string written between tags `format` is an annotation, as in JSON
Schema, and is not enforced. Every other keyword is enforced, or rejected by its name.

ToolChoice and OfferedTool are common to all APIs. Immutable values.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from itertools import chain, islice
from typing import Any

from tasuki.model.grammar.compiled_grammar import with_options
from tasuki.model.grammar.grammar import MAX_SOURCE_BYTES, GrammarError, GrammarKind
from tasuki.model.grammar.held_schema import MOST_IGNORED_FORMATS, ignored_formats
from tasuki.server.errors import InvalidField
from tasuki.server.text.parsing.call_reader import CLOSE, OPEN
from tasuki.server.text.text_codec import TextCodec

from .asked_grammar import AskedGrammar, expression, literal
from .tagged_arguments import END_OF_VALUE, TaggedArguments
from .tagged_text import ANY_TEXT, ANY_TEXT_RULE


@dataclass(frozen=True)
class OfferedTool:
    """A tool shown to the model. definition: its function definition in OpenAI's shape, as given to
    the template. strict: the arguments of every call follow its schema, even if no call is forced.
    input: grammar for the one parameter of a free-text tool; None: the tool has a schema."""

    definition: Mapping[str, Any]
    strict: bool = False
    input: AskedGrammar | None = None

    @property
    def function(self) -> Mapping[str, Any]:
        function: Mapping[str, Any] = self.definition["function"]
        return function

    @property
    def name(self) -> str:
        return str(self.function["name"])


MAX_CALLS = 32
"""Largest number of calls in one answer, if a call is forced."""
# Grammar of the text around calls: up to a call, and after the last one.
_AROUND_CALLS = (
    "start: (before called)* BEHIND",
    f"before[lazy]: /(?s:.*){OPEN}/",
    f"BEHIND: /(?s:.*)/ & ~/(?s:.*){OPEN}(?s:.*)/",
)


@dataclass(frozen=True)
class CallGrammar:
    """Maker of the grammar for tool calls. field: the request's field, for errors. tools: the tools
    the model may call. in_tags: the template writes arguments between tags, not as JSON. many: an
    answer may have several calls in a row. ignored: `format` values in the schemas not enforced by
    the grammar, filled while rules are made."""

    field: str
    tools: Sequence[OfferedTool]
    in_tags: bool
    many: bool
    ignored: dict[str, None] = dataclass_field(default_factory=dict, init=False, compare=False)

    def forced(self) -> AskedGrammar:
        """Return the grammar of an answer made only of tool calls. Raises InvalidField."""
        return self._asked(self.field, chain(["start: calls"], self._calls()))

    def or_else(self, answer: AskedGrammar) -> AskedGrammar:
        """Return the grammar of an answer made only of tool calls, or only of JSON following the
        schema in `answer`. Raises InvalidField."""
        body = _json(answer.field, json.loads(answer.source))
        rules = ["start: calls | answer", f"answer: {body}"]
        asked = self._asked(answer.field, chain(rules, self._calls()))
        ignored = dict.fromkeys((*answer.ignored, *asked.ignored))
        return replace(asked, ignored=tuple(islice(ignored, MOST_IGNORED_FORMATS)))

    def among_text(self) -> AskedGrammar:
        """Return the grammar of any text, with or without tool calls in it. Only the arguments of
        strict tools follow their schema. Raises InvalidField."""
        return self._asked(self.field, chain(_AROUND_CALLS, self._called(loosely=True)))

    def _asked(self, field: str, rules: Iterable[str]) -> AskedGrammar:
        """Return a grammar made of Lark rules. field: the request's field, for errors. Raises
        InvalidField once the rules exceed the largest size of a grammar, because thousands of rules
        could each contain a schema of megabytes."""
        made: list[str] = []
        size = 0
        for rule in rules:
            made.append(rule)
            size += len(rule) + 1
            if size > MAX_SOURCE_BYTES:
                raise InvalidField(
                    field, f"makes a grammar of over {MAX_SOURCE_BYTES} bytes: send shorter schemas"
                )
        parts = tuple(tool.input for tool in self.tools if tool.input is not None)
        ignored = tuple(islice(self.ignored, MOST_IGNORED_FORMATS))
        return AskedGrammar(field, GrammarKind.LARK, "\n".join(made), parts, ignored)

    def _calls(self) -> Iterator[str]:
        more = f' ("\\n" call){{0,{MAX_CALLS - 1}}}' if self.many else ""
        yield f"calls: call{more}"
        yield f"call: {literal(OPEN)} called"
        yield from self._called(loosely=False)

    def _called(self, *, loosely: bool) -> Iterator[str]:
        """Yield the Lark rules of calls, without their opening tag. loosely: do not enforce the
        schema of a tool without `strict`."""
        if self.in_tags:
            yield ANY_TEXT_RULE
        yield f"called: {' | '.join(f'call_{number}' for number in range(len(self.tools)))}"
        for number, tool in enumerate(self.tools):
            if loosely and not tool.strict and tool.input is None:
                yield f"call_{number}: {self._opening(tool.name)} call_{number}_text"
                yield f"call_{number}_text[lazy]: /(?s:.*)/ {literal(CLOSE)}"
            elif self.in_tags:
                yield from self._call_in_tags(number, tool)
            else:
                yield from self._call_in_json(number, tool)

    def _opening(self, name: str) -> str:
        """Return the Lark literal of a call's text between its opening tag and its arguments. name:
        the tool's name."""
        if self.in_tags:
            return literal(f"\n<function={name}>\n")
        return literal(f'\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": ')

    def _call_in_json(self, number: int, tool: OfferedTool) -> Iterator[str]:
        schema = _parameters(tool.function)
        self.ignored.update(dict.fromkeys(ignored_formats(schema)))
        if tool.input is not None:
            schema = _with_input(schema, tool.input)
        arguments = _json(self.field, schema, f"{tool.name:.80}: ")
        closing = literal(f"}}\n{CLOSE}")
        yield f"call_{number}: {self._opening(tool.name)} {arguments} {closing}"

    def _call_in_tags(self, number: int, tool: OfferedTool) -> Iterator[str]:
        opening, closing = self._opening(tool.name), literal(f"</function>\n{CLOSE}")
        parameters = _parameters(tool.function)
        if tool.input is None:
            arguments = TaggedArguments(self.field, f"call_{number}", tool.function, parameters)
            yield from arguments.rules(opening, closing)
            self.ignored.update(dict.fromkeys((*ignored_formats(parameters), *arguments.ignored)))
        else:
            (key,) = parameters["properties"]
            yield from _input(f"p_{number}", key, tool.input)
            yield f"call_{number}: {opening} p_{number} {closing}"


def _input(rule: str, key: str, grammar: AskedGrammar) -> Iterator[str]:
    """Yield the Lark rules of a free-text tool's parameter. rule: name of the first rule. key: the
    parameter's name. grammar: grammar of its text. If the grammar accepts any text to the end, the
    parameter's closing tag becomes part of the text."""
    opening = literal(f"<parameter={key}>\n")
    if grammar.kind is GrammarKind.REGEX:
        text = f"(/({expression(grammar.source)})/ & {ANY_TEXT})"
        yield f"{rule}: {opening} {rule}_text"
        yield f"{rule}_text[lazy]: {text} {literal(END_OF_VALUE)}"
        return
    yield f"{rule}: {opening} {rule}_text {literal(END_OF_VALUE)}"
    yield f"{rule}_text: %lark {{\n{grammar.source}\n}}"


def _with_input(schema: Mapping[str, Any], grammar: AskedGrammar) -> dict[str, Any]:
    """Return the schema of a free-text tool with a pattern for its text, made from `grammar`.
    Raises InvalidField for a grammar other than a regular expression."""
    if grammar.kind is not GrammarKind.REGEX:
        raise InvalidField(
            grammar.field, "cannot be followed: this template writes a tool's text as JSON"
        )
    (key,) = schema["properties"]
    text = {"type": "string", "pattern": f"^({grammar.source})$"}
    return {**schema, "properties": {key: text}}


def _parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    parameters = function.get("parameters")
    return {"type": "object", **parameters} if isinstance(parameters, dict) else {"type": "object"}


def _json(field: str, schema: Any, of: str = "") -> str:
    """Return a Lark term for JSON following the schema. field: the request's field, for errors. of:
    first words of an error's text. Raises InvalidField."""
    try:
        return f"%json {json.dumps(with_options(schema))}"
    except GrammarError as error:
        raise InvalidField(field, f"cannot be followed: {of}{error}") from error


FIELD = "tool_choice"
_TOOLS = "tools"


@dataclass(frozen=True)
class ToolChoice:
    """The calls an answer may or must make. forced: the answer is one call or several. name: the
    tool to call, once; None: any tool. allowed: names of the tools the model may call, among the
    tools shown to it; None: all."""

    forced: bool = False
    name: str | None = None
    allowed: frozenset[str] | None = None

    def among(self, tools: Sequence[OfferedTool]) -> list[OfferedTool]:
        """Return the tools the model may call, among the tools shown to it. Raises InvalidField if
        a chosen name is not among them."""
        wanted = self.allowed if self.name is None else frozenset({self.name})
        if wanted is None:
            return list(tools)
        unknown = sorted(wanted - {tool.name for tool in tools})
        if unknown:
            raise InvalidField(FIELD, f"names {unknown[0]!r:.80}, which is not among the tools")
        return [tool for tool in tools if tool.name in wanted]


def answer_grammar(
    choice: ToolChoice,
    tools: Sequence[OfferedTool],
    asked: AskedGrammar | None,
    codec: TextCodec,
    *,
    parallel: bool,
) -> AskedGrammar | None:
    """Return the grammar of the whole answer; None if any answer is allowed. tools: the tools shown
    to the model. asked: grammar requested for the text. If it is a JSON schema and no call is
    forced, calls are allowed in place of the JSON. Any other kind is the grammar of the whole
    answer. parallel: the answer may hold more than one call. Raises InvalidField."""
    if choice.forced and not tools:
        raise InvalidField(FIELD, "forces a call, and there are no tools")
    called = choice.among(tools)
    if choice.forced:
        many = parallel and choice.name is None
        return _calls(FIELD, called, codec, parallel=many).forced()
    if not called:
        return asked
    if asked is not None:
        if asked.kind is not GrammarKind.JSON_SCHEMA:
            return asked
        return _calls(asked.field, called, codec, parallel=parallel).or_else(asked)
    if choice.allowed is None and not any(tool.strict or tool.input for tool in called):
        return None
    return _calls(_TOOLS, called, codec, parallel=parallel).among_text()


def _calls(
    field: str, tools: Sequence[OfferedTool], codec: TextCodec, *, parallel: bool
) -> CallGrammar:
    template = codec.require_template()
    return CallGrammar(field, tools, in_tags=template.calls_in_tags, many=parallel)
