"""Tests of structured answers and forced tools over one daemon and over two, by the openai and
anthropic clients and our own."""

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from tasuki.client.prompt import Prompt
from tasuki.engine import messages as m
from tasuki.model.grammar.grammar import Grammar, GrammarKind
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.model.grammar.trials import client as trials_client
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.server.config import ServerConfig
from tasuki.server.daemon.client_front import node_codec
from tasuki.server.daemon.fused_node import FusedSide
from tests.harness.daemons import Node
from tests.harness.engines import LETTERS, engine_config, submit, tiny_parts
from tests.harness.running_nodes import HTTP, fused_node, node_pair
from tests.harness.sdk_clients import anthropic_client, openai, openai_client
from tests.harness.waiting import until

USER = [{"role": "user", "content": "Where does Elizabeth live, and with whom?" * 4}]
ASKED: dict[str, Any] = {"model": "embedded", "messages": USER, "temperature": 0.7, "seed": 5}
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "description": "Tells.", "parameters": PARAMETERS}
TIME = {"name": "time", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": item} for item in (WEATHER, TIME)]
ADDRESS = {
    "type": "object",
    "properties": {
        "street": {"type": "string", "maxLength": 10},
        "number": {"type": "integer", "minimum": 0, "maximum": 9999},
    },
    "required": ["street", "number"],
    "additionalProperties": False,
}


TAG = json.dumps(
    {
        "type": "structural_tag",
        "format": {
            "type": "sequence",
            "elements": [
                {"type": "regex", "pattern": "[p-r]"},
                {
                    "type": "tag",
                    "begin": "<a>",
                    "content": {"type": "json_schema", "json_schema": {"const": 7}},
                    "end": "</a>",
                },
            ],
        },
    }
)


class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=150)
    tags: list[Annotated[str, Field(max_length=6)]] = Field(max_length=2)

    model_config = {"extra": "forbid"}


@pytest.fixture(scope="module")
def fused() -> Iterator[Node]:
    with fused_node(*HTTP) as node:
        yield node


@pytest.fixture(scope="module")
def client(fused: Node) -> Iterator["openai.OpenAI"]:
    with openai_client(fused.http_address) as made:
        yield made


def test_parse_gives_the_model_that_was_asked_for(client: "openai.OpenAI") -> None:
    reply = client.chat.completions.parse(response_format=Person, max_tokens=400, **ASKED)
    choice = reply.choices[0]
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, Person)


def test_an_answer_cut_off_is_the_beginning_of_one(client: "openai.OpenAI") -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": ADDRESS}}
    whole = client.chat.completions.create(response_format=form, max_tokens=200, **ASKED)
    cut = client.chat.completions.create(response_format=form, max_tokens=6, **ASKED)
    assert (whole.choices[0].finish_reason, cut.choices[0].finish_reason) == ("stop", "length")
    said, begun = (reply.choices[0].message.content for reply in (whole, cut))
    assert said.startswith(begun) and json.loads(said).keys() == {"street", "number"}


@pytest.mark.parametrize(
    ("fields", "shape"),
    [
        ({"structured_outputs": {"regex": "[a-f]{3}-[0-9]{2}"}}, "[a-f]{3}-[0-9]{2}"),
        ({"guided_regex": "[a-f]{3}"}, "[a-f]{3}"),
        ({"structured_outputs": {"choice": ["yes", 'n"o\n', "może"]}}, 'yes|n"o\n|może'),
        ({"guided_choice": ["Bath", "Bristol"]}, "Bath|Bristol"),
        ({"structured_outputs": {"grammar": 'root ::= "a" ("b" | "c") "d"'}}, "a[bc]d"),
        ({"guided_grammar": 'start: "x" /[0-9]{2}/'}, "x[0-9]{2}"),
        ({"ebnf": 'root ::= [p-r] "!"'}, "[p-r]!"),
        ({"regex": "(ab){2}"}, "abab"),
        ({"structured_outputs": {"json": {"enum": [1, "two"]}}}, '1|"two"'),
        ({"guided_json": '{"type": "boolean"}'}, "true|false"),
        ({"json_schema": '{"const": null}'}, "null"),
        ({"structural_tag": TAG}, "[p-r]<a>7</a>"),
        ({"structured_outputs": {"structural_tag": TAG}}, "[p-r]<a>7</a>"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_every_field_of_the_peers(
    client: "openai.OpenAI", fields: dict[str, Any], shape: str
) -> None:
    chat = client.chat.completions.create(extra_body=fields, max_tokens=60, **ASKED).choices[0]
    assert chat.finish_reason == "stop" and re.fullmatch(shape, chat.message.content)
    completion = client.completions.create(
        model="embedded", prompt="Say:", extra_body=fields, max_tokens=60
    ).choices[0]
    assert completion.finish_reason == "stop" and re.fullmatch(shape, completion.text)


def test_any_object(client: "openai.OpenAI") -> None:
    for seed in range(3):
        reply = client.chat.completions.create(
            **ASKED | {"seed": seed}, response_format={"type": "json_object"}, max_tokens=60
        )
        text = reply.choices[0].message.content
        assert text.startswith("{")
        if reply.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"guided_json": {"not": {}}}, "guided_json"),
        ({"guided_regex": "(a"}, "guided_regex"),
        ({"guided_grammar": "start: b"}, "guided_grammar"),
        ({"ebnf": "start: " + "(" * 9999}, "ebnf"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_cannot_be_followed_is_named(
    client: "openai.OpenAI", fields: dict[str, Any], place: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(extra_body=fields, **ASKED)
    assert refused.value.param == place
    assert refused.value.body["message"].startswith(place)


def test_each_choice_and_each_prompt_follows_the_grammar(client: "openai.OpenAI") -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": ADDRESS}}
    chat = client.chat.completions.create(response_format=form, n=3, max_tokens=300, **ASKED)
    found = {choice.message.content for choice in chat.choices}
    assert len(found) == 3
    assert all(json.loads(text or "").keys() == {"street", "number"} for text in found)
    completion = client.completions.create(
        model="embedded",
        prompt=["Say:", "Tell:"],
        n=2,
        max_tokens=20,
        extra_body={"regex": "[a-f]{3}"},
    )
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
    assert all(re.fullmatch("[a-f]{3}", choice.text) for choice in completion.choices)


@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": {str(token): -100 for token in range(300)}},
        {"logit_bias": {"0": 100, "1": 100, "2": 100}},
        {"min_tokens": 50},
        {"allowed_token_ids": [5, 6, 7]},
        {"bad_words": ["a", "b", "aa", "ab", "ba", "bb"]},
        {"presence_penalty": 2, "frequency_penalty": 2, "repetition_penalty": 100},
        {"top_k": 1, "top_p": 0.01, "min_p": 1},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_contradicts_a_grammar_gives_way_to_it(
    client: "openai.OpenAI", fields: dict[str, Any]
) -> None:
    body = {"regex": "[ab]{12}", **fields}
    choice = client.chat.completions.create(extra_body=body, max_tokens=60, **ASKED).choices[0]
    assert choice.finish_reason == "stop"
    assert re.fullmatch("[ab]{12}", choice.message.content or "")


def test_a_stop_string_ends_an_answer_inside_its_json(client: "openai.OpenAI") -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": ADDRESS}}
    asked = {**ASKED, "response_format": form, "max_tokens": 300}
    whole = client.chat.completions.create(**asked).choices[0].message.content or ""
    cut = client.chat.completions.create(**asked, stop=['"number"']).choices[0]
    assert cut.finish_reason == "stop" and cut.message.content == whole.partition('"number"')[0]


def test_a_tool_is_forced_by_name_and_as_a_stream(client: "openai.OpenAI") -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    asked = {**ASKED, "tools": TOOLS, "tool_choice": choice, "max_tokens": 400}
    whole = client.chat.completions.create(**asked).choices[0]
    assert whole.finish_reason == "tool_calls" and not whole.message.content
    (call,) = whole.message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "weather" and {"city", "unit"} <= arguments.keys()
    assert arguments["unit"] in ("C", "F")
    deltas = [
        item
        for chunk in client.chat.completions.create(**asked, stream=True)
        for item in chunk.choices[0].delta.tool_calls or ()
    ]
    assert deltas[0].function.name == "weather"
    assert "".join(item.function.arguments or "" for item in deltas) == call.function.arguments


def test_some_tool_is_forced_and_only_one_where_no_more_may_be(client: "openai.OpenAI") -> None:
    for seed in range(4):
        reply = client.chat.completions.create(
            **ASKED | {"seed": seed, "tools": TOOLS, "tool_choice": "required"},
            parallel_tool_calls=False,
            max_tokens=400,
        ).choices[0]
        (call,) = reply.message.tool_calls
        assert call.function.name in ("weather", "time") and reply.finish_reason == "tool_calls"
        json.loads(call.function.arguments)


def test_responses_follow_a_format_and_a_forced_tool(client: "openai.OpenAI") -> None:
    asked = {"model": "embedded", "input": USER, "temperature": 0.7, "max_output_tokens": 400}
    parsed = client.responses.parse(text_format=Person, **asked)
    assert isinstance(parsed.output_parsed, Person)
    tools = [{"type": "function", **WEATHER}]
    choice = {"type": "function", "name": "weather"}
    forced = client.responses.create(tools=tools, tool_choice=choice, **asked)
    (call,) = (item for item in forced.output if item.type == "function_call")
    assert call.name == "weather" and json.loads(call.arguments)["unit"] in ("C", "F")


def test_messages_follow_a_format_and_a_forced_tool(fused: Node) -> None:
    tools = [
        {"name": "weather", "input_schema": PARAMETERS},
        {"name": "t", "input_schema": ADDRESS},
    ]
    asked: dict[str, Any] = {"model": "embedded", "messages": USER, "max_tokens": 400}
    with anthropic_client(fused.http_address, "none") as client:
        form = {"type": "json_schema", "schema": ADDRESS}
        for field in ({"output_config": {"format": form}}, {"output_format": form}):
            told = client.messages.create(**asked, extra_body=field | {"temperature": 0.0})
            assert json.loads(told.content[0].text).keys() == {"street", "number"}
        for choice in ({"type": "tool", "name": "weather"}, {"type": "any"}):
            used = client.messages.create(
                **asked, tools=tools, tool_choice=choice, extra_body={"temperature": 0.0}
            )
            assert used.stop_reason == "tool_use"
            assert {block.type for block in used.content} == {"tool_use"}
            assert used.content[0].name in ("weather", "t")[: 1 + (choice["type"] == "any")]


GRAMMARS: tuple[dict[str, Any], ...] = (
    {"json_schema": json.dumps(ADDRESS)},
    {"regex": "([a-z]{1,6} ){3}"},
    {"choices": ["first", "second"]},
    {"grammar": 'start: "[" /[0-9]{1,3}/ ("," /[0-9]{1,3}/)~2 "]"'},
)


def test_answers_are_alike_through_two_daemons(fused: Node) -> None:
    """Compare with one daemon's answers; here the prefill node samples the first token."""

    def answers(node: Node) -> list[tuple[Any, ...]]:
        found = []
        for options in GRAMMARS:
            for limit in (120, 1):
                answer = node.client.generate(
                    Prompt(text=USER[0]["content"]),
                    max_new_tokens=limit,
                    temperature=0.9,
                    seed=3,
                    **options,
                ).result()
                found.append((answer.text, answer.token_ids, answer.reason))
        return found

    alone = answers(fused)
    with node_pair(decode=("--local-prefill-tokens", "0")) as (_, decode):
        assert answers(decode) == alone
    assert json.loads(alone[0][0]).keys() == {"street", "number"}


def test_a_node_whose_engine_is_a_thread_tries_a_grammar_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = trials_client._Link.ask

    def counted(
        link: trials_client._Link, future: Any, caller: str, kind: GrammarKind, source: str
    ) -> None:
        asked.append(source)
        ask(link, future, caller, kind, source)

    monkeypatch.setattr(trials_client._Link, "ask", counted)
    config = engine_config(tmp_path)
    parts = tiny_parts()
    parts = replace(parts, grammars=GrammarCompiler(LETTERS))
    side = FusedSide(config, lambda *_: parts)
    codec = node_codec(config, ServerConfig(), side.model, side.grammars)
    once = Grammar(GrammarKind.LARK, 'start: "once"')
    asyncio.run(codec.grammars.check("ann", once.kind, once.source))
    sampling = SamplingParams(max_new_tokens=4, grammar=once)
    side.engine.handle(submit("r", [5, 6], 4, sampling=sampling))
    said: list[Any] = []

    def ended() -> bool:
        side.engine.step()
        said.extend(m.tokens_apart(side.engine.take_outbox()))
        return any(isinstance(part, m.Finished) for part in said)

    until(ended, lambda: "the answer does not end")
    assert [part.token for part in said if isinstance(part, m.TokenOut)] == list(b"once")
    assert asked == [once.source]
