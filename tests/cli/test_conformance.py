"""Tests of `tasuki conformance` against a node and against damaged replies, so every check fails
once."""

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scripts.conformance import node as saying
from tasuki.cli.conformance import main
from tasuki.cli.conformance.check import Caller, Check
from tasuki.cli.conformance.checks.service import refusals
from tasuki.cli.conformance.endpoint import Endpoint, Reply, open_endpoint
from tasuki.cli.conformance.main import api_rows
from tasuki.cli.conformance.outcome import Outcome, Row
from tasuki.server.config import ServerConfig
from tests.harness.daemons import Node
from tests.harness.damaged_endpoint import (
    Damage,
    DamagedEndpoint,
    Exchange,
    bodies,
    both,
    content_type,
    events,
    said,
    set_keys,
    status,
    text,
    without,
)
from tests.harness.forked_daemon import ForkedDaemon
from tests.harness.http_fixtures import running_http
from tests.harness.programs import error_line, exit_status
from tests.harness.running_nodes import HTTP, running
from tests.harness.tool_caller import tool_caller


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tool_caller(tmp_path_factory.mktemp("conformance") / "model", "qwen3_8")
    with running(Node("serve", "--model", str(folder), "--arena-mib", "96", *HTTP)) as started:
        yield started


@pytest.fixture(scope="module")
def known() -> dict[tuple[str, str, bytes | None], Reply]:
    """Return a table for the node's replies to the checks' requests, empty at first."""
    return {}


def _checks(name: str) -> list[Check]:
    if name == main.MODELS:
        return [*main.MODEL_CHECKS]
    return main.checks_of(main.APIS[name])


@pytest.mark.parametrize("name", [main.MODELS, *main.APIS])
def test_a_node_conforms(
    node: Node, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.json"
    url = f"http://{node.http_address}"
    status = exit_status(["conformance", url, "--api", name, "--json", str(file)])
    shown = capsys.readouterr().out
    assert status == 0, shown
    rows = json.loads(file.read_text())["rows"]
    names = [check.name for check in _checks(name)]
    assert [row["check"] for row in rows] == names
    assert {row["outcome"] for row in rows} == {"passed"}, shown
    assert f"{len(names)} passed, 0 failed, 0 skipped" in shown


def plus(number: int) -> Any:
    return lambda old: old + number if isinstance(old, int) else old


def first_index_only(chunk: Any) -> Any:
    """Drop the second choice of a stream."""
    chunk["choices"] = [choice for choice in chunk["choices"] if choice["index"] == 0]
    return chunk


def broken_calls(value: Any) -> Any:
    """Replace the arguments of each call by the start of an object without an end. In a stream, the
    first delta has this start."""
    if isinstance(value, list):
        return [broken_calls(item) for item in value]
    if not isinstance(value, dict):
        return value
    made = {key: broken_calls(inner) for key, inner in value.items()}
    if "arguments" in made:
        made["arguments"] = "{" if made.get("name") else ""
    return made


def broken_responses_calls(value: Any) -> Any:
    """Damage a Responses call as `broken_calls` does, and put all arguments into the first
    delta."""
    made = broken_calls(value)
    if str(made.get("type")) == "response.function_call_arguments.delta":
        made["delta"] = "{" if made["delta"].startswith("{") else ""
    return made


def counted_one_more(exchange: Exchange) -> Reply:
    return _COUNT(exchange) if exchange.path.endswith("count_tokens") else exchange.reply


def another_when_retrieved(exchange: Exchange) -> Reply:
    return bodies(set_keys(model="other"))(exchange) if exchange.method == "GET" else exchange.reply


def wrong_json_in_responses(exchange: Exchange) -> Reply:
    """Replace the message's text by wrong JSON, whole and streamed."""
    begun: list[Any] = []

    def change(body: Any) -> Any:
        if body.get("type") == "response.output_text.delta":
            body["delta"] = "" if begun else _WRONG_JSON
            begun.append(body)
        for item in body.get("output", []):
            if item["type"] == "message":
                item["content"][0]["text"] = _WRONG_JSON
        return body

    return both(change)(exchange)


_WRONG_ERROR = bodies(lambda body: {"detail": "no"})
_COUNT = bodies(set_keys(input_tokens=plus(1)))
_NO_CALLS = both(set_keys(finish_reason=lambda old: "stop" if old == "tool_calls" else old))
_NO_USES = both(set_keys(stop_reason=lambda old: "end_turn" if old == "tool_use" else old))
_OTHER_NAME = both(set_keys(name="other"))
_LATER_SEQUENCE = events(set_keys(sequence_number=plus(1)))
_CHATS_CUT = both(set_keys(finish_reason=lambda old: "tool_calls" if old == "length" else old))
_LENGTHENED = both(set_keys(finish_reason=lambda old: old and "length"))
_FINISHED = both(set_keys(finish_reason=lambda old: "stop" if old == "length" else old))
_MORE_TOKENS = both(set_keys(completion_tokens=plus(1), total_tokens=plus(1)))
_NO_PROMPT = both(set_keys(prompt_tokens=0, total_tokens=0, completion_tokens=0))
_STREAM_INPUT = events(set_keys(input_tokens=plus(1), total_tokens=plus(1)))
_ONE_ID = both(set_keys(id="same"))
_STREAM_USAGE = events(set_keys(prompt_tokens=plus(1), total_tokens=plus(1)))

WHOLE = "a whole reply has its fields"
DEFAULT = "a reply is whole where no stream is asked for"
ORDER = "a stream's events are in order, with one id"
SAME = "a stream is the whole reply"
USAGE = "usage of a stream is the whole reply's"
COUNTS = "usage counts both sides"
IDS = "ids differ between requests"
LENGTH = "a bound of tokens ends the answer"
ONE = "a bound of one token"
STOP = "a stop string ends the answer before it"
CALLED = "a call of the model's own accord"
REQUIRED, NAMED, RESULT = "a required call", "a named call", "a call's result is taken"
CUT = "a call that is cut off is not finished, at every length"
PARSE = "arguments of a call that is cut off parse, at every length"
FLAT, NESTED = "an answer follows a flat schema", "an answer follows a nested schema"
LAST_USAGE, NO_USAGE = "usage is the last chunk's, where asked for", "no usage, where not asked for"
TWO, TWO_STREAMED = "two answers to one prompt", "two streamed answers to one prompt"
LOGPROBS = "logprobs have one entry a token"
STREAMED_LOGPROBS = "streamed logprobs have one entry a token"

STORED = "a stored response is the reply"
GOES_ON = "a conversation goes on by previous_response_id"
DELETED = "a deleted response is gone"
ASKED_EACH_TIME = (IDS, STORED, GOES_ON, DELETED)
"""Checks with replies that depend on earlier requests."""

_WRONG_JSON = '{"name": 3, "age": 1, "days": []}'
_CHUNKS: list[tuple[str, Damage, str]] = [
    (WHOLE, bodies(without("created")), "reply.created"),
    (WHOLE, bodies(set_keys(total_tokens=plus(1))), "usage.total_tokens"),
    (WHOLE, bodies(set_keys(finish_reason="end")), "finish_reason"),
    (DEFAULT, text(r"^.*$", "data: {}\n\n"), "JSON"),
    (ORDER, text(r"data: \[DONE\]\n\n", ""), "the last event"),
    (ORDER, text(r"\[DONE\]", "[DONE]\n\ndata: [DONE]"), "[DONE] events"),
    (ORDER, text(r'("id":".*?"id":")', r"\1x"), "id: expected"),
    (ORDER, text(r'("created":.*?"created":)', r"\g<1>1"), "created: expected"),
    (ORDER, events(set_keys(object="other")), "object"),
    (ORDER, text(r"\n\n$", ""), "end of the stream"),
    (ORDER, content_type("text/plain"), "content type"),
    (SAME, events(set_keys(content="x", text="x")), "text of the stream"),
    (SAME, events(set_keys(finish_reason=lambda old: old and "length")), "reason of the stream"),
    (USAGE, _STREAM_USAGE, "usage of the stream"),
    (COUNTS, _NO_PROMPT, "tokens of the prompt"),
    (IDS, _ONE_ID, "ids of three answers"),
    (LENGTH, _FINISHED, "by its length"),
    (ONE, _MORE_TOKENS, "tokens of the answer"),
    (STOP, _LENGTHENED, "finish_reason"),
    (LAST_USAGE, events(set_keys(usage=None)), "the last chunk's usage"),
    (TWO, bodies(first_index_only), "indexes of the choices"),
    (TWO_STREAMED, events(first_index_only), "choices that ended"),
]
DAMAGES: list[tuple[str, str, Damage, str]] = [
    ("models", "the list has the model", bodies(set_keys(id="other")), "ids of the list"),
    ("models", "one model by its id", bodies(set_keys(id="other")), "id: expected"),
    ("models", "an unknown id is 404", status(200), "status"),
    ("models", "an unknown id is 404", _WRONG_ERROR, "body.error"),
    *[(api, *row) for api in ("chats", "completions") for row in _CHUNKS],
    ("chats", ORDER, events(set_keys(role="user")), "role of the first delta"),
    ("chats", STOP, said("content", "It was so and on"), "text before"),
    ("completions", STOP, said("text", "It was so and on"), "text before"),
    ("chats", NO_USAGE, events(lambda chunk: {**chunk, "usage": {}}), "usage of a chunk"),
    ("completions", NO_USAGE, events(lambda chunk: {**chunk, "usage": {}}), "usage of a chunk"),
    ("chats", LOGPROBS, bodies(set_keys(top_logprobs=[])), "likeliest tokens"),
    ("chats", LOGPROBS, bodies(set_keys(logprobs=None)), "entries"),
    ("chats", STREAMED_LOGPROBS, events(set_keys(logprob=1.0)), "0 at most"),
    ("chats", STREAMED_LOGPROBS, events(set_keys(logprobs=None)), "entries"),
    ("completions", LOGPROBS, bodies(set_keys(tokens=[])), "entries of tokens"),
    ("completions", LOGPROBS, bodies(set_keys(text="x")), "the tokens together"),
    ("chats", CALLED, _NO_CALLS, "with calls to run"),
    ("chats", CALLED, events(set_keys(arguments="x")), "calls of the stream"),
    ("chats", REQUIRED, _NO_CALLS, "with calls to run"),
    ("chats", REQUIRED, _OTHER_NAME, "name of a call"),
    ("chats", NAMED, _OTHER_NAME, "name of the call"),
    ("chats", RESULT, status(500), "status"),
    ("chats", CUT, _CHATS_CUT, "with calls to run"),
    ("chats", PARSE, both(broken_calls), "arguments"),
    ("chats", FLAT, said("content", _WRONG_JSON), "a value of the schema"),
    ("chats", FLAT, said("content", "{"), "JSON"),
    ("chats", NESTED, said("content", _WRONG_JSON), "a value of the schema"),
    ("messages", WHOLE, bodies(without("role")), "reply.role"),
    ("messages", WHOLE, bodies(set_keys(stop_reason="stop")), "stop_reason"),
    ("messages", DEFAULT, text(r"^.*$", "data: {}\n\n"), "JSON"),
    ("messages", ORDER, text(r"event: message_start", "event: begin"), "name of an event"),
    ("messages", ORDER, text(r"event: message_stop.*$", ""), "the last events"),
    ("messages", ORDER, text(r"event: content_block_stop.*?\n\n", ""), "an open block"),
    ("messages", ORDER, events(set_keys(index=plus(1))), "index of content_block_start"),
    ("messages", SAME, events(set_keys(text="x")), "text of the stream"),
    ("messages", USAGE, events(set_keys(input_tokens=plus(1))), "usage of the stream"),
    ("messages", COUNTS, both(set_keys(output_tokens=0)), "tokens of the answer"),
    ("messages", IDS, _ONE_ID, "ids of three answers"),
    ("messages", LENGTH, both(set_keys(stop_reason="end_turn")), "by its length"),
    ("messages", ONE, both(set_keys(output_tokens=2)), "tokens of the answer"),
    ("messages", STOP, both(set_keys(stop_reason="end_turn")), "stop_reason"),
    ("messages", STOP, both(set_keys(stop_sequence="x")), "stop_sequence"),
    ("messages", "count_tokens is the usage's", counted_one_more, "input_tokens"),
    ("messages", CALLED, _NO_USES, "with calls to run"),
    ("messages", REQUIRED, both(set_keys(name="other")), "name of a call"),
    ("messages", NAMED, both(set_keys(name="other")), "name of the call"),
    ("messages", RESULT, status(500), "status"),
    (
        *("messages", CUT),
        both(set_keys(stop_reason=lambda old: old and "tool_use")),
        "with calls to run",
    ),
    ("messages", PARSE, events(set_keys(partial_json="{")), "input of a call"),
    ("messages", FLAT, said("text", _WRONG_JSON), "a value of the schema"),
    ("messages", NESTED, said("text", _WRONG_JSON), "a value of the schema"),
    ("responses", WHOLE, bodies(without("created_at")), "reply.created_at"),
    ("responses", WHOLE, bodies(set_keys(total_tokens=plus(1))), "usage.total_tokens"),
    ("responses", DEFAULT, text(r"^.*$", "data: {}\n\n"), "JSON"),
    ("responses", ORDER, _LATER_SEQUENCE, "sequence numbers"),
    ("responses", ORDER, events(set_keys(item_id="other")), "item_id"),
    ("responses", ORDER, events(set_keys(output_index=plus(1))), "output_index"),
    ("responses", ORDER, events(set_keys(output=[])), "output of the last event"),
    ("responses", ORDER, events(set_keys(delta="x")), "text of"),
    ("responses", SAME, events(set_keys(delta="x")), "text of the stream"),
    ("responses", USAGE, _STREAM_INPUT, "usage of the stream"),
    (
        "responses",
        COUNTS,
        both(set_keys(output_tokens=0, total_tokens=0, input_tokens=0)),
        "prompt",
    ),
    ("responses", IDS, _ONE_ID, "ids of three answers"),
    ("responses", LENGTH, both(set_keys(status="completed")), "by its length"),
    ("responses", CALLED, events(set_keys(arguments="x", delta="x")), "of the stream"),
    ("responses", REQUIRED, _OTHER_NAME, "name of a call"),
    ("responses", NAMED, _OTHER_NAME, "name of the call"),
    ("responses", RESULT, status(500), "status"),
    ("responses", CUT, both(set_keys(status="completed")), "by its length"),
    ("responses", PARSE, both(broken_responses_calls), "arguments"),
    ("responses", FLAT, wrong_json_in_responses, "a value of the schema"),
    ("responses", NESTED, wrong_json_in_responses, "a value of the schema"),
    ("responses", STORED, another_when_retrieved, "model: expected"),
    (
        *("responses", GOES_ON),
        bodies(set_keys(input_tokens=1)),
        "input_tokens of the next turn",
    ),
    ("responses", DELETED, status(200), "status of GET afterwards"),
    *[
        (api.name, check.name, damage, note)
        for api in main.APIS.values()
        for check in refusals(api)
        for damage, note in (
            (status(200), "status"),
            (_WRONG_ERROR, "body"),
            (content_type("text/html"), "content type of an error"),
        )
    ],
]


@pytest.mark.parametrize(
    ("name", "check", "damage", "note"),
    DAMAGES,
    ids=[f"{name}, {check}: {note}" for name, check, _, note in DAMAGES],
)
def test_a_check_fails_where_what_it_looks_at_is_wrong(
    node: Node,
    known: dict[tuple[str, str, bytes | None], Reply],
    name: str,
    check: str,
    damage: Damage,
    note: str,
) -> None:
    (asked,) = [each for each in _checks(name) if each.name == check]
    replies = None if check in ASKED_EACH_TIME else known

    async def row() -> Row:
        async with open_endpoint(f"http://{node.http_address}") as whole:
            damaged = DamagedEndpoint(whole.url, whole.seconds, whole.session, damage, replies)
            api = main.APIS["chats" if name == main.MODELS else name]
            return await asked.row(name, Caller(damaged, api, "model"))

    found = asyncio.run(row())
    assert found.outcome is Outcome.FAILED and note in found.note, found


def test_each_check_was_made_to_fail() -> None:
    damaged = {(name, check) for name, check, _, _ in DAMAGES}
    known = {(name, check.name) for name in ("models", *main.APIS) for check in _checks(name)}
    assert damaged == known


def test_an_api_that_is_not_there_and_a_feature_that_is_refused_are_skipped(node: Node) -> None:
    async def rows() -> list[Row]:
        async with open_endpoint(f"http://{node.http_address}") as whole:
            gone = DamagedEndpoint(
                *(whole.url, whole.seconds, whole.session),
                lambda exchange: replace(exchange.reply, status=404, body=b""),
            )
            refused = DamagedEndpoint(
                *(whole.url, whole.seconds, whole.session),
                lambda exchange: replace(exchange.reply, status=400, body=b'"n is not known"'),
            )
            chats = main.APIS["chats"]
            (two,) = [check for check in _checks("chats") if check.name == TWO]
            broken = DamagedEndpoint(
                *(whole.url, whole.seconds, whole.session),
                lambda exchange: replace(exchange.reply, status=400, body=b'"not now"'),
            )
            return [
                *await api_rows(Caller(gone, chats, "model"), _checks("chats")),
                await two.row("chats", Caller(refused, chats, "model")),
                await two.row("chats", Caller(broken, chats, "model")),
                *await api_rows(Caller(whole, chats, "no-such-model"), _checks("chats")),
            ]

    absent, refused, broken, unknown = asyncio.run(rows())
    assert absent.outcome is refused.outcome is Outcome.SKIPPED
    assert "404" in absent.note and "n is not known" in refused.note
    assert broken.outcome is unknown.outcome is Outcome.FAILED
    assert "give --model" in unknown.note


def test_schemas_are_skipped_without_their_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)

    async def row() -> Row:
        async with open_endpoint("http://127.0.0.1:9") as gone:
            (flat,) = [check for check in _checks("chats") if check.name == FLAT]
            return await flat.row("chats", Caller(gone, main.APIS["chats"], "model"))

    found = asyncio.run(row())
    assert found.outcome is Outcome.SKIPPED and "needs jsonschema" in found.note


def test_a_server_that_went_away_fails_its_rows() -> None:
    async def row() -> Row:
        async with open_endpoint("http://127.0.0.1:9") as gone:
            caller = Caller(gone, main.APIS["chats"], "model")
            return await _checks("chats")[0].row("chats", caller)

    found = asyncio.run(row())
    assert found.outcome is Outcome.FAILED and "is a server running there" in found.note


@pytest.mark.parametrize("value", ["[" * 100_000, "{", "", "3"])
def test_replies_that_are_no_objects_fail_the_check(value: str, node: Node) -> None:
    async def row() -> Row:
        async with open_endpoint(f"http://{node.http_address}") as whole:
            damage = text(r"^.*$", value)
            damaged = DamagedEndpoint(whole.url, whole.seconds, whole.session, damage)
            caller = Caller(damaged, main.APIS["chats"], "model")
            return await _checks("chats")[0].row("chats", caller)

    assert asyncio.run(row()).outcome is Outcome.FAILED


def test_a_key_is_borne_from_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "key"
    file.write_text("secret\n")
    with running_http(config=ServerConfig(api_key="secret")) as http:
        asked = ["conformance", f"http://{http.server.address}/v1/", "--api", "models"]
        assert exit_status([*asked, "--api-key-file", str(file)]) == 0
        assert "3 passed" in capsys.readouterr().out
        assert exit_status(asked) == 1
    assert "401" in error_line(capsys)


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["http://127.0.0.1:9"], "http://127.0.0.1:9"),
        (["http://127.0.0.1:9", "--api", "grpc"], "use models, chats"),
        (["http://127.0.0.1:9", "--ca", "/nowhere.pem"], "/nowhere.pem"),
        (["http://127.0.0.1:9", "--api-key-file", "/nowhere.key"], "/nowhere.key"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    argv: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status(["conformance", *argv]) == 1
    assert part in error_line(capsys)


WITH_CALLS = ("chats", "messages", "responses")
TORN_NAME = "a name that is cut off is text"
NO_STOPS = "a stop string in a call does not count"


@pytest.fixture(scope="module")
def saying_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tool_caller(tmp_path_factory.mktemp("saying") / "model", "qwen3_8")
    launch = partial(ForkedDaemon, main=saying.main)
    with running(Node("serve", "--model", str(folder), *HTTP, launch=launch)) as started:
        yield started


def test_a_node_reads_calls_as_its_rules_say(
    saying_node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.json"
    url = f"http://{saying_node.http_address}"
    status = exit_status(["conformance", url, "--dictated", "--json", str(file)])
    shown = capsys.readouterr().out
    assert status == 0, shown
    rows = json.loads(file.read_text())["rows"]
    apis = [main.APIS[name] for name in WITH_CALLS]
    assert len(rows) == sum(len(main.dictated_checks_of(api)) for api in apis)
    others = [(row["api"], row["check"]) for row in rows if row["outcome"] != "passed"]
    assert others == [("responses", NO_STOPS)], shown


class WithoutTools(Endpoint):
    """An endpoint of a server without tool calls: requests are sent without `tools`."""

    async def _ask(self, method: str, path: str, body: bytes | None) -> Reply:
        asked = json.loads(body or b"{}")
        asked.pop("tools", None)
        return await super()._ask(method, path, json.dumps(asked).encode())


@pytest.mark.parametrize("name", WITH_CALLS)
def test_each_check_fails_at_a_server_that_reads_no_calls(saying_node: Node, name: str) -> None:
    async def rows() -> list[Row]:
        async with open_endpoint(f"http://{saying_node.http_address}") as whole:
            api = main.APIS[name]
            caller = Caller(WithoutTools(whole.url, whole.seconds, whole.session), api, "model")
            return [await check.row(name, caller) for check in main.dictated_checks_of(api)]

    passed = {row.check for row in asyncio.run(rows()) if row.outcome is not Outcome.FAILED}
    assert passed == ({TORN_NAME, NO_STOPS} if name == "responses" else {TORN_NAME})


def test_a_torn_name_that_is_lost_is_found(saying_node: Node) -> None:
    async def row() -> Row:
        async with open_endpoint(f"http://{saying_node.http_address}") as whole:
            damage = said("content", "x")
            damaged = DamagedEndpoint(whole.url, whole.seconds, whole.session, damage)
            api = main.APIS["chats"]
            (torn,) = [check for check in main.dictated_checks_of(api) if check.name == TORN_NAME]
            return await torn.row("chats", Caller(damaged, api, "model"))

    assert asyncio.run(row()).outcome is Outcome.FAILED
