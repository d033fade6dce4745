"""Tests of calls under a grammar, forced or chosen by the model. Any text the grammar allows is
read as a call, in both syntaxes. Its arguments are valid by the tool's schema. A tool no call can
follow is refused by its name."""

import json
from typing import Any

import jsonschema
import numpy as np
import pytest

from tasuki.model.grammar.constraint import allows
from tasuki.model.grammar.grammar import Grammar, GrammarKind
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.server.errors import InvalidField
from tasuki.server.text.grammars.asked_grammar import AskedGrammar, of_schema
from tasuki.server.text.grammars.call_grammar import CallGrammar, OfferedTool
from tasuki.server.text.parsing.answer_parser import AnswerParser
from tasuki.server.text.text_answer import CallArguments, CallBegin, Content, Piece, Thinking
from tests.harness.answer_pieces import BY_ITSELF
from tests.harness.byte_grammars import END, byte_compiler, follows

COLOUR = {"enum": ["red", "dark blue"], "type": "string"}
SCHEMAS: dict[str, dict[str, Any]] = {
    "none": {"type": "object", "properties": {}},
    "text": {
        "type": "object",
        "properties": {
            "path": {"type": "string", "format": "uri", "description": "where"},
            "mode": {"type": "string", "enum": ["r", "w+"]},
        },
        "required": ["path"],
    },
    "numbers": {
        "type": "object",
        "properties": {
            "count": {"type": "integer", "minimum": 0, "maximum": 12},
            "share": {"type": ["number", "null"]},
            "flag": {"type": "boolean"},
            "list": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3},
        },
        "required": ["count", "flag"],
    },
    "bounded": {
        "type": "object",
        "properties": {
            "code": {"type": "string", "pattern": "^[A-C]{2}/[0-9]$"},
            "word": {"type": "string", "minLength": 2, "maxLength": 5},
        },
        "required": ["code", "word"],
    },
    "references": {
        "type": "object",
        "$defs": {
            "Colour": COLOUR,
            "Point": {
                "type": "object",
                "properties": {"x": {"type": "integer", "maximum": 9, "minimum": 0}},
                "required": ["x"],
                "additionalProperties": False,
            },
        },
        "properties": {
            "colour": {"$ref": "#/$defs/Colour"},
            "maybe": {"anyOf": [{"$ref": "#/$defs/Colour"}, {"type": "null"}]},
            "point": {"$ref": "#/$defs/Point"},
        },
        "required": ["colour", "point"],
    },
}


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMAS[name]}}


def offered(name: str, *, strict: bool = False) -> OfferedTool:
    return OfferedTool(tool(name), strict)


def answer(grammars: GrammarCompiler, grammar: Grammar, seed: int, most: int = 600) -> str:
    """Return a random text the grammar allows. Closing characters are likelier, so long values end
    soon."""
    rng = np.random.default_rng(seed)
    constraint, said = grammars.constraint(grammar, ()), b""
    while len(said) < most:
        mask = constraint.mask()
        assert mask is not None
        tokens = [token for token in range(257) if allows(mask, token)]
        plain = [t for t in tokens if t in (*b'\n<"}]/>', END)]
        readable = [t for t in tokens if 32 <= t < 127]
        token = int(rng.choice(plain if plain and rng.random() < 0.7 else readable or tokens))
        if token == END:
            return said.decode()
        said += bytes([token])
        constraint.append(token)
    raise AssertionError(f"no end: {said!r}")


@pytest.mark.parametrize("in_tags", [True, False], ids=["tags", "json"])
@pytest.mark.parametrize("many", [True, False], ids=["many", "one"])
def test_what_the_grammar_lets_through_is_read_as_valid_calls(in_tags: bool, many: bool) -> None:
    tools = [tool(name) for name in SCHEMAS]
    grammars = byte_compiler()
    shown = [OfferedTool(item) for item in tools]
    asked = CallGrammar("tool_choice", shown, in_tags, many).forced()
    grammar, called, ended = Grammar(asked.kind, asked.source), set(), 0
    for seed in range(12):
        try:
            text = answer(grammars, grammar, seed)
        except AssertionError:
            continue
        ended += 1
        parser = AnswerParser(Thinking.NEVER, tools)
        items = [*parser.push(Piece(text, None)), *parser.finish(BY_ITSELF)]
        names = {item.number: item.name for item in items if isinstance(item, CallBegin)}
        assert names and (many or len(names) == 1), text
        assert not "".join(i.text for i in items if isinstance(i, Content)).strip(), text
        for number, name in names.items():
            parts = [i.json for i in items if isinstance(i, CallArguments) and i.number == number]
            arguments = json.loads("".join(parts))
            jsonschema.validate(arguments, SCHEMAS[name])
            called.add(name)
    assert ended >= 8 and len(called) >= 3, (ended, called)


def test_a_text_may_stand_in_place_of_calls() -> None:
    form = of_schema("response_format", {"type": "integer", "minimum": 0, "maximum": 9})
    calls = CallGrammar("response_format", [offered("none")], in_tags=True, many=False)
    asked = calls.or_else(form)
    grammars = byte_compiler()
    texts = {answer(grammars, Grammar(asked.kind, asked.source), seed) for seed in range(30)}
    assert "<tool_call>\n<function=none>\n</function>\n</tool_call>" in texts
    assert any(text.isdigit() for text in texts)


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "string", "not": {"const": "a"}}, "not of f.x"),
        ({"type": "string", "pattern": "^a|b$"}, "pattern of f.x"),
        ({"type": "string", "pattern": "^(a)[)]|b"}, "pattern of f.x"),
        ({"$ref": "#/$defs/none"}, "ref of f.x"),
        ({"type": "string", "if": {}, "then": {"maxLength": 2}}, "if of f.x"),
        ({"type": "string", "oneOf": [{"enum": ["a", "b"]}, {"enum": ["a"]}]}, "oneOf of f.x"),
    ],
)
def test_what_no_text_can_be_held_to_is_named(schema: dict[str, Any], keyword: str) -> None:
    other = {"type": "string", "enum": ["a"]}
    parameters = {"type": "object", "properties": {"x": schema, "y": other}}
    definition = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    with pytest.raises(InvalidField, match=keyword):
        CallGrammar("tool_choice", [OfferedTool(definition)], in_tags=True, many=False).forced()


def written(in_tags: bool, name: str, arguments: str) -> str:
    """Return a call. arguments: text between the tags, or JSON."""
    if in_tags:
        return f"<tool_call>\n<function={name}>\n{arguments}</function>\n</tool_call>"
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


RIGHT = {
    True: "<parameter=count>\n3\n</parameter>\n<parameter=flag>\ntrue\n</parameter>\n",
    False: '{"count": 3, "flag": true}',
}
WRONG = {True: "<parameter=count>\n13\n</parameter>\n", False: '{"count": 13}'}


@pytest.mark.parametrize("in_tags", [True, False], ids=["tags", "json"])
def test_among_text_only_what_is_strict_is_held_to_its_schema(in_tags: bool) -> None:
    tools = [offered("numbers", strict=True), offered("text")]
    asked = CallGrammar("tools", tools, in_tags, many=True).among_text()
    right, wrong = (written(in_tags, "numbers", item[in_tags]) for item in (RIGHT, WRONG))
    loose = written(in_tags, "text", WRONG[in_tags])
    for text in ("", "Fine <tool_cal", right, f"I look.\n\n{right}", f"{right}\n{loose} <b", loose):
        assert follows(asked, text), text
    unknown = written(in_tags, "rm", RIGHT[in_tags])
    for text in ("<tool_call>", wrong, f"a{right}b{wrong}", unknown, f"{loose}{unknown}"):
        assert not follows(asked, text), text


def test_a_pattern_s_anchors_are_of_all_its_branches() -> None:
    kind = {"type": "string", "pattern": r"^(on|off|[|x]\|y)$"}
    parameters = {"type": "object", "properties": {"kind": kind}, "required": ["kind"]}
    tool = OfferedTool({"type": "function", "function": {"name": "f", "parameters": parameters}})
    asked = CallGrammar("tool_choice", [tool], in_tags=True, many=False).forced()
    for text, right in (("on", True), ("off", True), ("||y", True), ("ox", False), ("x", False)):
        call = written(True, "f", f"<parameter=kind>\n{text}\n</parameter>\n")
        assert follows(asked, call) is right, text


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "string", "x-order": 1, "markdownDescription": "x"}, "a b", None),
        ({"type": ["string", "integer"], "minimum": 5}, "a b", None),
        ({"allOf": [{"type": "string", "enum": ["a b"]}], "default": "a b"}, "a b", "a"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "maxLength": 2}, "ab", "abc"),
    ],
    ids=str,
)
def test_of_a_text_s_schema_what_is_of_its_letters_is_held(
    schema: dict[str, Any], right: str, wrong: str | None
) -> None:
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    tool = OfferedTool({"type": "function", "function": {"name": "f", "parameters": parameters}})
    asked = CallGrammar("tool_choice", [tool], in_tags=True, many=False).forced()
    for text in filter(None, (right, wrong)):
        call = written(True, "f", f"<parameter=x>\n{text}\n</parameter>\n")
        assert follows(asked, call) is (text == right)


INPUT = 'start: line+\nline: WORD "{" /[0-9]+/ "}\\n"\nWORD: /[a-z]+/\n'
CUSTOM = {
    "type": "function",
    "function": {
        "name": "note",
        "parameters": {
            "type": "object",
            "properties": {"input": {"type": "string"}},
            "required": ["input"],
        },
    },
}


def noted(kind: GrammarKind, source: str, in_tags: bool) -> AskedGrammar:
    tool = OfferedTool(CUSTOM, input=AskedGrammar("tools[0].format", kind, source))
    return CallGrammar("tools", [tool], in_tags, many=True).among_text()


@pytest.mark.parametrize("ignored", ["", '%ignore " "\n'])
def test_a_tool_s_text_follows_its_own_grammar(ignored: str) -> None:
    asked = noted(GrammarKind.LARK, ignored + INPUT, True)

    def call(text: str) -> str:
        return written(True, "note", f"<parameter=input>\n{text}\n</parameter>\n")

    assert follows(asked, f"So: {call('ab{1}' + chr(10) + 'c{22}' + chr(10))} Done.")
    assert not follows(asked, call("ab{1}")) and not follows(asked, call("{}"))


@pytest.mark.parametrize("in_tags", [True, False], ids=["tags", "json"])
def test_a_tool_s_text_follows_its_own_expression(in_tags: bool) -> None:
    asked = noted(GrammarKind.REGEX, "[a-c]+/x|.*", in_tags)
    strict = noted(GrammarKind.REGEX, "[a-c]+/x", in_tags)

    def call(text: str) -> str:
        told = f"<parameter=input>\n{text}\n</parameter>\n" if in_tags else f'{{"input": "{text}"}}'
        return written(in_tags, "note", told)

    assert follows(asked, call("abc/x")) and follows(asked, call("d"))
    assert follows(strict, call("abc/x")) and not follows(strict, call("d"))


def test_rules_cannot_be_written_as_json() -> None:
    with pytest.raises(InvalidField, match=r"tools\[0\]\.format .*template writes .* as JSON"):
        noted(GrammarKind.LARK, INPUT, False)
