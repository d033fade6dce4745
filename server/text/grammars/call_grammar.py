"""Calls of tools as a grammar: in the syntax that the model's template teaches it, with arguments
by each tool's JSON schema, or by a grammar of the tool's own.

Pure functions. What a call's text means is read by server/text/parsing/; a call that follows the
grammar is read there as it was meant. Of a string written between tags `format` is an annotation,
as JSON Schema has it, and is not enforced; every other keyword is, or is refused by its name.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from tasuki.model.grammar.compiled_grammar import with_options
from tasuki.model.grammar.grammar import MAX_SOURCE_BYTES, GrammarError, GrammarKind
from tasuki.server.errors import InvalidField
from tasuki.server.text.json_bounds import MAX_DEPTH
from tasuki.server.text.parsing.call_reader import CLOSE, OPEN
from tasuki.server.text.parsing.parameter_types import json_types, parameter_schemas

from .asked_grammar import AskedGrammar, expression, literal
from .offered_tool import OfferedTool

MAX_CALLS = 32
"""Of one answer, where a call is forced."""
_MAX_REFERENCES = 8
_MOST_REPEATED = 1 << 11
"""Schemas in one grammar that were looked at before."""
_KEYWORDS = 64
"""As many as a schema has, and more."""
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
        return self._asked(self.field, chain(["start: calls"], self._calls()))

    def or_else(self, answer: AskedGrammar) -> AskedGrammar:
        """The answer is calls, or what `answer` asks for, a JSON schema. Raises InvalidField."""
        body = f"%json {json.dumps(with_options(json.loads(answer.source)))}"
        rules = ["start: calls | answer", f"answer: {body}"]
        return self._asked(answer.field, chain(rules, self._calls()))

    def among_text(self) -> AskedGrammar:
        """The answer is any text with calls in it, or without; only strict tools' arguments follow
        their schema. Raises InvalidField."""
        return self._asked(self.field, chain(_AROUND_CALLS, self._called(loosely=True)))

    def _asked(self, field: str, rules: Iterable[str]) -> AskedGrammar:
        """Raises InvalidField once the rules are longer than any grammar may be: a schema of
        megabytes could stand in each of thousands of them."""
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
        return AskedGrammar(field, GrammarKind.LARK, "\n".join(made), parts)

    def _calls(self) -> Iterator[str]:
        more = f' ("\\n" call){{0,{MAX_CALLS - 1}}}' if self.many else ""
        yield f"calls: call{more}"
        yield f"call: {literal(OPEN)} called"
        yield from self._called(loosely=False)

    def _called(self, *, loosely: bool) -> Iterator[str]:
        """Calls behind their opening tag. loosely: what is not strict is not held to its schema."""
        seen = _Schemas(self.field)
        yield f"called: {' | '.join(f'call_{number}' for number in range(len(self.tools)))}"
        for number, tool in enumerate(self.tools):
            if loosely and not tool.strict and tool.input is None:
                yield f"call_{number}: {self._opening(tool.name)} call_{number}_text"
                yield f"call_{number}_text[lazy]: /(?s:.*)/ {literal(CLOSE)}"
            elif self.in_tags:
                yield from self._call_in_tags(number, tool, seen)
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

    def _call_in_tags(self, number: int, tool: OfferedTool, seen: "_Schemas") -> Iterator[str]:
        name, function, parameters = tool.name, tool.function, _parameters(tool.function)
        schemas = parameter_schemas(name, [{"function": function}])
        listed = parameters.get("required")
        listed = listed if isinstance(listed, list) else []
        required = dict.fromkeys(key for key in listed if isinstance(key, str))
        own = parameters.get("properties")
        keys = {**(dict.fromkeys(own) if isinstance(own, Mapping) else {}), **required}
        body = []
        for place, key in enumerate(keys):
            rule = f"p_{number}_{place}"
            body.append(rule if key in required else f"{rule}?")
            if tool.input is None:
                shown = f"{name:.80}.{key:.80}"
                yield from self._parameter(rule, shown, key, schemas, parameters, seen)
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
        seen: "_Schemas",
    ) -> Iterator[str]:
        opening = literal(f"<parameter={key}>\n")
        schema = seen.resolved(schemas.get(key), parameters)
        if "string" not in json_types(schema, schemas):
            definitions = {name: parameters[name] for name in _DEFINITIONS if name in parameters}
            value = _json(self.field, {**definitions, **schema})
            yield f"{rule}: {opening} {value} {literal(_END_OF_VALUE)}"
            return
        yield f"{rule}: {opening} {rule}_text"
        text = self._text(place, schema, parameters, seen, 0)
        yield f"{rule}_text[lazy]: {text} {literal(_END_OF_VALUE)}"

    def _text_of_branches(
        self,
        place: str,
        branches: Sequence[Any],
        parameters: Mapping[str, Any],
        seen: "_Schemas",
        depth: int,
    ) -> str:
        """Where a branch takes any text, the text of a value of another branch is among them."""
        if depth > MAX_DEPTH:
            raise InvalidField(
                self.field,
                f"cannot be followed: {place} nests or refers to itself: use {MAX_DEPTH} levels",
            )
        found = []
        for item in branches:
            branch = seen.resolved(item, parameters)
            types = seen.types(item, branch, parameters)
            if "string" in types:
                found.append(self._text(place, branch, parameters, seen, depth))
            elif types == {"null"}:
                found.append(literal("null"))
        return _ANY_TEXT if _ANY_TEXT in found else f"({' | '.join(found)})"

    def _text(
        self,
        place: str,
        schema: Mapping[str, Any],
        parameters: Mapping[str, Any],
        seen: "_Schemas",
        depth: int,
    ) -> str:
        """A terminal of the texts that stand for the schema's values. depth: schemas around it."""
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and values:
            return f"({' | '.join(literal(_written(value)) for value in values)})"
        branches = schema.get("anyOf") or schema.get("oneOf")
        terms = [_ANY_TEXT]
        if isinstance(branches, list):
            terms = [self._text_of_branches(place, branches, parameters, seen, depth + 1)]
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


class _Schemas:
    """The schemas that one grammar has looked at. References may lead to each of them many times,
    so that the size of all schemas bounds nothing. One grammar, one thread."""

    def __init__(self, field: str) -> None:
        """field: of the request, as errors name it."""
        self._field = field
        # The request holds them for as long as this lives.
        self._known: set[int] = set()
        self._types: dict[int, frozenset[str]] = {}
        self._left = _MOST_REPEATED

    def resolved(self, schema: Any, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what _resolved() does. Raises InvalidField once too many came again."""
        found = _resolved(schema, parameters)
        if isinstance(schema, Mapping):
            self._left -= id(schema) in self._known
            self._known.add(id(schema))
        # A long schema of which nothing is written is copied and looked through all the same.
        self._left -= len(found) // _KEYWORDS
        if self._left < 0:
            raise InvalidField(
                self._field,
                f"cannot be followed: references lead to over {_MOST_REPEATED} schemas more than "
                "once: write fewer of them",
            )
        return found

    def types(
        self, schema: Any, resolved: Mapping[str, Any], parameters: Mapping[str, Any]
    ) -> frozenset[str]:
        """Return the JSON types of a branch. resolved: the schema as resolved() returned it."""
        if not isinstance(schema, Mapping):
            return json_types(resolved, {"": parameters})
        if id(schema) not in self._types:
            self._types[id(schema)] = json_types(resolved, {"": parameters})
        return self._types[id(schema)]


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
