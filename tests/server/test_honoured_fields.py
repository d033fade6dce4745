"""Tests of fields with an effect on an answer: each is honoured or refused by name. Fields absent
from a request come from generation_config.json."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasuki.engine import messages as m
from tasuki.model.grammar.grammar import Grammar, GrammarKind
from tasuki.server.config import ServerConfig
from tasuki.server.openai.routes import served_model
from tasuki.server.openai.sampling import GenerationConfigError, SamplingDefaults
from tasuki.server.text.text_codec import TextCodec
from tests.harness.grpc_fixtures import TOKENS_ONLY
from tests.harness.http_fixtures import HttpFront, running_http

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
ASKED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "it was"}]},
    COMPLETION: {"prompt": [5, 6, 7]},
}
SCHEMA = {"type": "object"}
RULES = 'root ::= "a"'
FOLLOWED: dict[str, tuple[Any, str, str]] = {
    "response_format": ({"type": "json_object"}, "json_schema", '{"type": "object"}'),
    "structured_outputs": ({"json": SCHEMA, "regex": None}, "json_schema", '{"type": "object"}'),
    "guided_json": (SCHEMA, "json_schema", '{"type": "object"}'),
    "guided_regex": ("a+", "regex", "a+"),
    "guided_choice": (["a", "b", "a"], "lark", 'start: "a" | "b"'),
    "guided_grammar": (RULES, "lark", RULES),
    "json_schema": ("{}", "json_schema", "{}"),
    "regex": ("a+", "regex", "a+"),
    "ebnf": (RULES, "lark", RULES),
    "structural_tag": ('{"format": {"type": "regex", "pattern": "a"}}', "lark", "start: /a/"),
}
HARMLESS: dict[str, Any] = {
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "structured_outputs": None,
    "response_format": {"type": "text"},
    "guided_choice": [],
    "bad_words": [],
    "allowed_token_ids": None,
    "continue_final_message": False,
    "add_generation_prompt": True,
    "skip_special_tokens": True,
    "return_token_ids": False,
    "spaces_between_special_tokens": False,
    "guided_decoding_backend": "xgrammar",
    "service_tier": "auto",
    "user": "ann",
    "a_field_of_tomorrow": {"x": 1},
}


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize("field", FOLLOWED)
def test_what_the_answer_follows_reaches_the_engine(http: HttpFront, path: str, field: str) -> None:
    value, kind, source = FOLLOWED[field]
    assert http.post(path, ASKED[path] | {field: value}).status == 200
    (submit,) = http.engine.of(m.Submit)
    assert submit.sampling.grammar == Grammar(GrammarKind(kind), source)


@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
def test_a_schema_may_stand_beside_the_type(http: HttpFront, kind: str) -> None:
    """Accept the form used by clients of llama.cpp and of others of its API."""
    wanted = {"type": "array", "items": {"type": "integer"}}
    assert http.chat(response_format={"type": kind, "schema": wanted}).status == 200
    (submit,) = http.engine.of(m.Submit)
    assert submit.sampling.grammar == Grammar(GrammarKind.JSON_SCHEMA, json.dumps(wanted))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("seed", 2**64, "seed must be in [-2^63, 2^63)"),
        ("suffix", "x", 'suffix is not supported here: leave it out, or ""'),
        (
            "separate_reasoning",
            False,
            "separate_reasoning is not supported here: leave it out, or true",
        ),
        ("seed", "5", "seed must be an integer"),
        ("seed", True, "seed must be an integer"),
        (
            "response_format",
            {"type": "xml"},
            "response_format.type must be text, json_object, json_schema or structural_tag",
        ),
    ],
    ids=["large", "a text", "a boolean", "text", "boolean", "format"],
)
def test_a_refusal_says_what_would_be_taken(
    http: HttpFront, field: str, value: object, said: str
) -> None:
    for path, asked in ASKED.items():
        reply = http.post(path, asked | {field: value})
        assert (reply.status, reply.error["message"]) == (400, said)
    assert not http.engine.of(m.Submit)


def _nested(depth: int) -> str:
    return '{"type":"or","elements":[' * depth + '{"type":"any_text"}' + "]}" * depth


@pytest.mark.parametrize(
    ("field", "value", "part"),
    [
        ("guided_json", '{"items":' * 900 + "{}" + "}" * 900, "nested too deeply"),
        ("guided_json", '{"items":' * 9000 + "{}" + "}" * 9000, "not JSON"),
        ("guided_json", '{"enum":[' + "[]," * 200_000 + "1]}", "at most 262144 bytes"),
        ("structural_tag", f'{{"format":{_nested(300)}}}', "nested too deeply"),
        ("structural_tag", "[" * 300_000, "at most 262144 bytes"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_json_in_a_string_is_bounded_as_a_body_is(
    http: HttpFront, field: str, value: str, part: str
) -> None:
    reply = http.post(COMPLETION, ASKED[COMPLETION] | {field: value})
    assert (reply.status, reply.error["param"]) == (400, field), reply
    assert part in reply.error["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_what_changes_no_answer_is_taken(http: HttpFront, path: str) -> None:
    assert http.post(path, ASKED[path] | HARMLESS).status == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize("reason", [m.FinishReason.STOP, m.FinishReason.LENGTH])
def test_special_tokens_are_named_where_asked_but_for_the_end(
    http: HttpFront, codec: TextCodec, path: str, stream: bool, reason: m.FinishReason
) -> None:
    tokenizer = codec.require_tokenizer()
    special = tokenizer.added_tokens["<|im_start|>"]
    torn = tokenizer.encode("漢")[:1]
    tokens = [special, *tokenizer.encode("it"), *torn, special, special]
    http.engine.answer = lambda submit: tokens
    finish = http.engine._finish
    http.engine._finish = lambda submit, _, drawn: finish(submit, reason, drawn)

    def told(**fields: Any) -> str:
        reply = http.post(path, ASKED[path] | {"stream": stream, "max_tokens": 9} | fields)
        choices = [
            choice
            for event in (reply.events if stream else [reply.json])
            for choice in event["choices"]
        ]
        if path == COMPLETION:
            return "".join(choice["text"] for choice in choices)
        parts = [choice["delta" if stream else "message"] for choice in choices]
        return "".join(part.get("content") or "" for part in parts)

    last = "" if reason is m.FinishReason.STOP else "<|im_start|>"
    assert told(skip_special_tokens=False) == f"<|im_start|>it\ufffd<|im_start|>{last}"
    assert told(skip_special_tokens=True) == told() == "it\ufffd"
    for kept in ("include_stop_str_in_output", "no_stop_trim"):
        named = told(skip_special_tokens=False, **{kept: True})
        assert named == "<|im_start|>it\ufffd<|im_start|><|im_start|>", "the end too, as its stop"
        assert told(**{kept: True}) == "it\ufffd"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("field", ["include_stop_str_in_output", "no_stop_trim"])
def test_the_stop_string_is_kept_where_asked(
    http: HttpFront, codec: TextCodec, field: str, stream: bool
) -> None:
    tokenizer = codec.require_tokenizer()
    letters = [token for letter in "it was fine" for token in tokenizer.encode(letter)]
    http.engine.answer = lambda submit: letters
    http.engine.hold = True
    reply = http.complete(stop=["s f", "was fi"], stream=stream, **{field: True})
    if stream:
        text = "".join(event["choices"][0]["text"] for event in reply.events)
    else:
        text = reply.json["choices"][0]["text"]
    assert text == "it was f"


def test_a_chat_without_a_generation_prompt_is_not_opened(http: HttpFront) -> None:
    tokens = http.post("/tokenize", ASKED[CHAT] | {"add_generation_prompt": False}).json["tokens"]
    assert http.chat(add_generation_prompt=False).status == 200
    http.chat()
    closed, opened = (submit.prompt.tolist() for submit in http.engine.of(m.Submit))
    assert closed == tokens == opened[: len(closed)] and len(opened) > len(closed)


def folder(path: Path, **values: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "generation_config.json").write_text(json.dumps(values))
    return path


def test_defaults_come_from_the_checkpoint_or_from_where_it_is_said(tmp_path: Path) -> None:
    model = folder(tmp_path / "model", temperature=0.6, top_p=0.95, top_k=20)
    other = folder(tmp_path / "other", temperature=0, top_k=-1)
    (tmp_path / "bare").mkdir()
    for choice, place, found in (
        ("auto", model, SamplingDefaults(0.6, 0.95, 20)),
        ("auto", tmp_path / "bare", SamplingDefaults(1.0, 1.0, 0)),
        ("vllm", model, SamplingDefaults(1.0, 1.0, 0)),
        (str(other), model, SamplingDefaults(0.0, 1.0, 0)),
    ):
        config = ServerConfig(generation_config=choice)
        served = served_model(str(place), config, 100, TOKENS_ONLY)
        assert served.sampling_defaults == found


def test_the_file_may_ask_for_a_penalty_and_a_least_chance(tmp_path: Path) -> None:
    place = folder(tmp_path, repetition_penalty=1.05, min_p=0.1)
    defaults = SamplingDefaults.load("auto", place)
    assert (defaults.repetition_penalty, defaults.min_p) == (1.05, 0.1)


def test_defaults_of_penalties_reach_the_engine_where_none_is_asked_for(codec: TextCodec) -> None:
    defaults = SamplingDefaults(repetition_penalty=1.05, min_p=0.1)
    with running_http(codec, sampling_defaults=defaults) as http:
        http.complete()
        http.complete(repetition_penalty=1, min_p=0)
        told = [(s.sampling.repetition_penalty, s.sampling.min_p) for s in http.engine.of(m.Submit)]
    assert told == [(1.05, 0.1), (1.0, 0.0)]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ('{"temperature": -1}', "temperature must be 0, or in"),
        ('{"temperature": "warm"}', "temperature must be a number"),
        ('{"top_p": 0}', "top_p must be in"),
        ('{"max_new_tokens": 0}', "max_new_tokens must be at least 1"),
        ('{"max_new_tokens": true}', "max_new_tokens must be a number"),
        ("[]", "is not a JSON object"),
        ("{", "is not JSON"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, content: str, part: str) -> None:
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(GenerationConfigError, match=part) as raised:
        SamplingDefaults.load("auto", tmp_path)
    assert str(tmp_path / "generation_config.json") in str(raised.value)


def test_a_folder_without_the_file_is_an_error_where_it_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(GenerationConfigError, match="auto, vllm, or a folder with the file"):
        SamplingDefaults.load(str(tmp_path), tmp_path)


def test_the_file_may_bound_every_answer(codec: TextCodec, tmp_path: Path) -> None:
    defaults = SamplingDefaults.load("auto", folder(tmp_path, max_new_tokens=9))
    with running_http(codec, sampling_defaults=defaults) as http:
        for ask in (http.chat, http.complete):
            for asked, meant in (({}, 9), ({"max_tokens": 5}, 5), ({"max_tokens": 20}, 9)):
                assert ask(**asked).status == 200
                assert http.engine.of(m.Submit)[-1].sampling.max_new_tokens == meant


def test_a_request_s_own_fields_come_before_the_defaults(codec: TextCodec) -> None:
    with running_http(codec, sampling_defaults=SamplingDefaults(0.6, 0.95, 20)) as http:
        for asked, meant in (
            ({}, (0.6, 0.95, 20)),
            ({"temperature": 0}, (0.0, 0.95, 20)),
            ({"top_k": -1, "top_p": 1}, (0.6, 1.0, 0)),
            ({"top_k": 0, "temperature": 1}, (1.0, 0.95, 0)),
        ):
            for ask in (http.chat, http.complete):
                assert ask(**asked).status == 200
                sampling = http.engine.of(m.Submit)[-1].sampling
                assert (sampling.temperature, sampling.top_p, sampling.top_k) == meant
