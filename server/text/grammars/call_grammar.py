"""Calls of tools as a grammar: in the syntax that the model's template teaches it, with arguments
by each tool's JSON schema, or by a grammar of the tool's own.

Pure functions. What a call's text means is read by server/text/parsing/; a call that follows the
grammar is read there as it was meant. Of a string written between tags `format` is an annotation,
as JSON Schema has it, and is not enforced; every other keyword is, or is refused by its name.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasuki.model.grammar.compiled_grammar import with_options
from tasuki.model.grammar.grammar import GrammarError, GrammarKind
from tasuki.server.errors import InvalidField
from tasuki.server.text.parsing.call_reader import CLOSE, OPEN
from tasuki.server.text.parsing.parameter_types import json_types, parameter_schemas

from .asked_grammar import AskedGrammar, expression, literal
from .offered_tool import OfferedTool

MAX_CALLS = 32
"""Of one answer, where a call is forced."""
_MAX_REFERENCES = 8
_DEFINITIONS = ("$defs", "definitions")

# What of a string's schema would have to be held and is not; "$ref": one that leads elsewhere than
# to a definition. Keywords of other types, annotations and unknown ones say nothing of its letters.
_NOT_HELD = frozenset({"$ref", "$dynamicRef", "$recursiveRef", "allOf", "not", "if"})
_ENDS = re.compile(r"(?<!\\)(?:\\\\)*\$$")
_END_OF_VALUE = "\n</parameter>\n"
# No value holds what a reader would take for its end.
_ANY_TEXT = r"(/(?s:.*)/ & ~/(?s:.*)<\/(parameter|function|tool_call)>(?s:.*)/)"
# Of an answer in which calls may stand: up to a call, and behind the last one.
_AROUND_CALLS = (
    "start: (before called)* BEHIND",
    f"before[lazy]: /(?s:.*){OPEN}/",
    f"BEHIND: /(?s:.*)/ & ~/(?s:.*){OPEN}(?s:.*)/",
)


@dataclass(frozen=True)
class CallGrammar:
    """tools: those that may be called. in_tags: the template writes arguments between tags, not as
    JSON. many: more than one call may follow another. field: of the request, as errors name it."""

    field: str
    tools: Sequence[OfferedTool]
    in_tags: bool
    many: bool

    def forced(self) -> AskedGrammar:
        """The answer is calls. Raises InvalidField."""
        return self._asked(self.field, "start: calls", *self._calls())

    def or_else(self, answer: AskedGrammar) -> AskedGrammar:
        """The answer is calls, or what `answer` asks for, a JSON schema. Raises InvalidField."""
        body = f"%json {json.dumps(with_options(json.loads(answer.source)))}"
        return self._asked(answer.field, "start: calls | answer", f"answer: {body}", *self._calls())

    def among_text(self) -> AskedGrammar:
        """The answer is any text with calls in it, or without; only strict tools' arguments follow
        their schema. Raises InvalidField."""
        return self._asked(self.field, *_AROUND_CALLS, *self._called(loosely=True))

    def _asked(self, field: str, *rules: str) -> AskedGrammar:
        return AskedGrammar(field, GrammarKind.LARK, "\n".join(rules))

    def _calls(self) -> Iterator[str]:
        more = f' ("\\n" call){{0,{MAX_CALLS - 1}}}' if self.many else ""
        yield f"calls: call{more}"
        yield f"call: {literal(OPEN)} called"
        yield from self._called(loosely=False)

    def _called(self, *, loosely: bool) -> Iterator[str]:
        """Calls behind their opening tag. loosely: what is not strict is not held to its schema."""
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
        """Behind the call's own tag."""
        if self.in_tags:
            return literal(f"\n<function={name}>\n")
        return literal(f'\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": ')

    def _call_in_json(self, number: int, tool: OfferedTool) -> Iterator[str]:
        schema = _parameters(tool.function)
        if tool.input is not None:
            schema = _with_input(schema, tool.input)
        arguments = _json(self.field, schema)
        closing = literal(f"}}\n{CLOSE}")
        yield f"call_{number}: {self._opening(tool.name)} {arguments} {closing}"

    def _call_in_tags(self, number: int, tool: OfferedTool) -> Iterator[str]:
        name, function, parameters = tool.name, tool.function, _parameters(tool.function)
        schemas = parameter_schemas(name, [{"function": function}])
        required = parameters.get("required")
        required = required if isinstance(required, list) else []
        own = parameters.get("properties")
        keys = list(own) if isinstance(own, Mapping) else []
        keys += [key for key in required if isinstance(key, str) and key not in keys]
        body = []
        for place, key in enumerate(keys):
            rule = f"p_{number}_{place}"
            body.append(rule if key in required else f"{rule}?")
            if tool.input is None:
                yield from self._parameter(rule, f"{name}.{key}", key, schemas, parameters)
            else:
                yield from _input(rule, key, tool.input)
        closing = literal(f"</function>\n{CLOSE}")
        yield f"call_{number}: {self._opening(name)} {' '.join(body)} {closing}"

    def _parameter(
        self,
        rule: str,
        place: str,
        key: str,
        schemas: Mapping[str, Any],
        parameters: Mapping[str, Any],
    ) -> Iterator[str]:
        opening = literal(f"<parameter={key}>\n")
        schema = _resolved(schemas.get(key), parameters)
        if "string" not in json_types(schema, schemas):
            definitions = {name: parameters[name] for name in _DEFINITIONS if name in parameters}
            value = _json(self.field, {**definitions, **schema})
            yield f"{rule}: {opening} {value} {literal(_END_OF_VALUE)}"
            return
        yield f"{rule}: {opening} {rule}_text"
        text = self._text(place, schema, parameters)
        yield f"{rule}_text[lazy]: {text} {literal(_END_OF_VALUE)}"

    def _text_of_branches(
        self, place: str, branches: Sequence[Any], parameters: Mapping[str, Any]
    ) -> str:
        """Where a branch takes any text, the text of a value of another branch is among them."""
        found = []
        for branch in (_resolved(item, parameters) for item in branches):
            types = json_types(branch, {"": parameters})
            if "string" in types:
                found.append(self._text(place, branch, parameters))
            elif types == {"null"}:
                found.append(literal("null"))
        return _ANY_TEXT if _ANY_TEXT in found else f"({' | '.join(found)})"

    def _text(self, place: str, schema: Mapping[str, Any], parameters: Mapping[str, Any]) -> str:
        """A terminal of the texts that stand for the schema's values."""
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and values:
            return f"({' | '.join(literal(_written(value)) for value in values)})"
        branches = schema.get("anyOf") or schema.get("oneOf")
        terms = [_ANY_TEXT]
        if isinstance(branches, list):
            terms = [self._text_of_branches(place, branches, parameters)]
        for keyword, value in schema.items():
            if keyword == "pattern" and isinstance(value, str):
                terms.append(f"/{self._searched(place, value)}/")
            elif keyword in ("minLength", "maxLength") and isinstance(value, int):
                bounds = f"{value}," if keyword == "minLength" else f"0,{value}"
                terms.append(f"/(?s:.{{{bounds}}})/")
            elif keyword in _NOT_HELD:
                raise InvalidField(
                    self.field, f"cannot be followed: {keyword} of {place} is not supported here"
                )
        return f"({' & '.join(terms)})" if len(terms) > 1 else terms[0]

    def _searched(self, place: str, pattern: str) -> str:
        """A regular expression of the texts in which the pattern is found."""
        begins, ends = pattern.startswith("^"), bool(_ENDS.search(pattern))
        if (begins or ends) and _alternates(pattern):
            raise InvalidField(
                self.field, f"cannot be followed: the pattern of {place} has anchors beside a |"
            )
        inner = expression(pattern[begins : len(pattern) - ends])
        before, behind = ("" if anchored else "(?s:.*)" for anchored in (begins, ends))
        return f"{before}({inner}){behind}"


def _alternates(pattern: str) -> bool:
    """Whether a | stands in no group, so that an anchor is of one branch alone."""
    depth, in_class, escaped = 0, False, False
    for letter in pattern:
        if escaped:
            escaped = False
        elif letter == "\\":
            escaped = True
        elif in_class:
            in_class = letter != "]"
        elif letter == "|" and not depth:
            return True
        else:
            in_class = letter == "["
            depth += {"(": 1, ")": -1}.get(letter, 0)
    return False


def _input(rule: str, key: str, grammar: AskedGrammar) -> Iterator[str]:
    """A parameter whose text follows a grammar of the tool's own. Where the grammar takes any text
    to its end, what ends the parameter is a part of that text."""
    opening = literal(f"<parameter={key}>\n")
    if grammar.kind is GrammarKind.REGEX:
        text = f"(/({expression(grammar.source)})/ & {_ANY_TEXT})"
        yield f"{rule}: {opening} {rule}_text"
        yield f"{rule}_text[lazy]: {text} {literal(_END_OF_VALUE)}"
        return
    yield f"{rule}: {opening} {rule}_text {literal(_END_OF_VALUE)}"
    yield f"{rule}_text: %lark {{\n{grammar.source}\n}}"


def _with_input(schema: Mapping[str, Any], grammar: AskedGrammar) -> dict[str, Any]:
    """The schema of a tool of free text, whose text follows a grammar. Raises InvalidField."""
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


def _json(field: str, schema: Any) -> str:
    try:
        return f"%json {json.dumps(with_options(schema))}"
    except GrammarError as error:
        raise InvalidField(field, f"cannot be followed: {error}") from error


def _resolved(schema: Any, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that a reference into the parameters' definitions stands for, alone or as the only
    one of an allOf, as generators of schemas write it."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, Mapping):
            break
        all_of = schema.get("allOf")
        if isinstance(all_of, list) and len(all_of) == 1 and isinstance(all_of[0], Mapping):
            schema = {**all_of[0], **{k: v for k, v in schema.items() if k != "allOf"}}
            continue
        reference = schema.get("$ref")
        parts = reference.split("/") if isinstance(reference, str) else []
        if len(parts) != 3 or parts[0] != "#" or parts[1] not in _DEFINITIONS:
            break
        target = parameters.get(parts[1])
        if not isinstance(target, Mapping) or not isinstance(target.get(parts[2]), Mapping):
            break
        schema = {**target[parts[2]], **{k: v for k, v in schema.items() if k != "$ref"}}
    return schema if isinstance(schema, Mapping) else {}


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
