"""Tests of HTTP around the APIs: keys, ids, origins, probes, names, tokens, silence."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tasuki.server.config import ServerConfig
from tasuki.server.http.access import host_name
from tasuki.server.http.reply import KEEP_ALIVE_COMMENT, EventStream
from tasuki.server.openai.generation import ANY_NAME, ServedModel
from tasuki.server.openai.routes import served_model
from tasuki.server.text.rendering.chat_template import ChatTemplate
from tasuki.server.text.rendering.compiled_template import CompiledTemplate
from tasuki.server.text.text_codec import TextCodec
from tests.harness.http_calls import Reply
from tests.harness.http_fixtures import HttpFront, running_http
from tests.harness.waiting import HANG_SECONDS

PAGE = "https://chat.example"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer secret"},
        {"Authorization": "bearer secret"},
        {"Authorization": "BEARER secret"},
        {"x-api-key": "secret"},
        {"x-api-key": "secret", "Authorization": "Bearer secret"},
    ],
)
def test_a_key_is_borne_in_either_header(headers: dict[str, str]) -> None:
    with running_http(config=ServerConfig(api_key="secret")) as http:
        assert http.ask("GET", "/v1/models", headers=headers).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-api-key": "other"},
        {"x-api-key": "Bearer secret"},
        {"x-api-key": "other", "Authorization": "Bearer secret"},
        {"x-api-key": "secret", "Authorization": "Bearer other"},
        {"Authorization": "Bearer  secret"},
        {"Authorization": "secret"},
        {"Authorization": "Basic secret"},
    ],
)
def test_other_headers_are_no_key(headers: dict[str, str]) -> None:
    with running_http(config=ServerConfig(api_key="secret")) as http:
        reply = http.ask("GET", "/v1/models", headers=headers)
        assert reply.refusal == (401, "invalid_api_key")
        assert "x-api-key" in reply.error["message"] and "secret" not in reply.error["message"]


def test_every_answer_carries_an_id(http: HttpFront) -> None:
    def told(reply: Reply) -> str:
        return reply.headers["x-request-id"]

    named = {"x-request-id": "given"}
    assert told(http.complete(named)) == told(http.ask("GET", "/health", headers=named)) == "given"
    assert told(http.complete(named, temperature=-1)) == "given"
    assert told(http.ask("GET", "/nothing", headers=named)) == "given"
    assert told(http.complete(named, stream=True)) == "given"
    made = [told(http.complete()) for _ in range(2)]
    assert len(set(made)) == 2 and all(len(name) == 32 for name in made)
    for unusable in ("x" * 257, "\xe9", ""):
        reply = http.complete({"x-request-id": unusable})
        assert reply.status == 200 and reply.json["id"] == f"cmpl-{told(reply)}"
        assert told(reply) != unusable


@pytest.mark.parametrize("path", ["/health", "/healthz", "/ping"])
def test_probes_have_the_names_that_others_use(http: HttpFront, path: str) -> None:
    assert http.ask("GET", path, headers={"Host": "10.0.0.1"}).json == {"status": "ok"}


def test_a_page_of_an_allowed_origin_reads_what_it_asks_for() -> None:
    config = ServerConfig(api_key="secret", allowed_origins=f"https://other.example, {PAGE}/")
    with running_http(config=config) as http:
        preflight = http.ask("OPTIONS", "/v1/chat/completions", headers=PREFLIGHT)
        assert (preflight.status, preflight.body) == (204, b"")
        assert preflight.headers["Access-Control-Allow-Origin"] == PAGE
        assert preflight.headers["Access-Control-Allow-Headers"] == "authorization,content-type"
        assert "POST" in preflight.headers["Access-Control-Allow-Methods"]
        refused = http.ask("GET", "/v1/models", headers={"Origin": PAGE})
        assert refused.status == 401
        assert refused.headers["Access-Control-Allow-Origin"] == PAGE
        assert "x-request-id" in refused.headers["Access-Control-Expose-Headers"]
        bearing = {"Authorization": "Bearer secret", "Origin": PAGE}
        streamed = http.complete(bearing, stream=True)
        assert streamed.headers["Access-Control-Allow-Origin"] == PAGE
        assert streamed.headers["Vary"] == "Origin"


def test_a_preflight_costs_its_origin_nothing() -> None:
    config = ServerConfig(requests_per_minute=1, allowed_origins=ANY_NAME)
    with running_http(config=config) as http:
        for _ in range(3):
            assert http.ask("OPTIONS", "/v1/completions", headers=PREFLIGHT).status == 204
        assert http.complete().status == 200
        assert http.complete().status == 429


@pytest.mark.parametrize(
    ("allowed", "path", "origin"),
    [
        ("", "/v1/completions", PAGE),
        ("https://other.example", "/v1/completions", PAGE),
        (PAGE, "/v1/completions", "https://chat.example.evil"),
        (PAGE, "/v1/completions", "null"),
        (ANY_NAME, "/debug/overview", PAGE),
        (ANY_NAME, "/metrics", PAGE),
    ],
)
def test_other_pages_read_nothing(allowed: str, path: str, origin: str) -> None:
    with running_http(config=ServerConfig(allowed_origins=allowed)) as http:
        for method in ("OPTIONS", "GET"):
            reply = http.ask(method, path, headers={**PREFLIGHT, "Origin": origin})
            assert reply.status >= 400
            assert not any(name.startswith("Access-Control") for name in reply.headers)


def test_a_preflight_to_a_foreign_name_is_refused() -> None:
    with running_http(config=ServerConfig(allowed_origins=ANY_NAME)) as http:
        headers = {**PREFLIGHT, "Host": "evil.example"}
        assert http.ask("OPTIONS", "/v1/completions", headers=headers).refusal == (
            421,
            "wrong_host",
        )


def asked_by_name(http: HttpFront, name: str) -> tuple[int, str]:
    reply = http.complete(model=name)
    return reply.status, reply.json.get("model", "")


def test_a_model_answers_to_its_aliases(codec: TextCodec) -> None:
    model = ServedModel("mine", 1_700_000_000, 1000, codec, aliases=("other", "a/third"))
    with running_http(codec, model=model) as http:
        listed = http.ask("GET", "/v1/models").json
        assert [card["id"] for card in listed["data"]] == ["mine", "other", "a/third"]
        assert (listed["first_id"], listed["last_id"], listed["has_more"]) == (
            "mine",
            "a/third",
            False,
        )
        card = http.ask("GET", "/v1/models/a/third").json
        assert (card["id"], card["root"], card["max_model_len"]) == ("a/third", "mine", 1000)
        assert (card["object"], card["type"], card["display_name"]) == ("model", "model", "a/third")
        assert http.ask("GET", "/v1/models/fourth").refusal == (404, "model_not_found")
        assert asked_by_name(http, "other") == (200, "other")
        assert asked_by_name(http, "fourth")[0] == 404
        assert http.complete().json["model"] == "mine"


def test_a_model_may_answer_to_every_name(codec: TextCodec) -> None:
    config = ServerConfig(served_model_name="mine,*")
    with running_http(codec, model=served_model("folder", config, 1000, codec)) as http:
        assert asked_by_name(http, "gpt-4o") == (200, "gpt-4o")
        assert asked_by_name(http, "x" * 257)[0] == 404
        assert [card["id"] for card in http.ask("GET", "/v1/models").json["data"]] == ["mine"]
    named = served_model("a/folder", ServerConfig(served_model_name="*, b"), 1000, codec)
    assert (named.name, named.aliases) == ("folder", ("*", "b"))


def tokenized(http: HttpFront, **fields: Any) -> dict[str, Any]:
    reply = http.post("/tokenize", fields)
    assert reply.status == 200, reply
    found: dict[str, Any] = reply.json
    return found


def test_tokens_of_a_text_and_back(http: HttpFront, codec: TextCodec) -> None:
    found = tokenized(http, prompt="it was 漢", return_token_strs=True)
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert found["token_strs"][0] == "it"
    assert "".join(found["token_strs"]) == "itĠwasĠæ¼¢", "the vocabulary's names, as vLLM has them"
    assert tokenized(http, prompt="it")["token_strs"] is None
    back = http.post("/detokenize", {"tokens": found["tokens"], "model": "tiny"})
    assert back.json == {"prompt": "it was 漢"}
    chat = tokenized(http, messages=[{"role": "user", "content": "it"}])["tokens"]
    text = http.post("/detokenize", {"tokens": chat}).json["prompt"]
    assert text == "<|im_start|>user\nit<|im_end|>\n<|im_start|>assistant\n"


def test_the_checkpoint_says_what_class_reads_its_tokenizer(
    codec: TextCodec, tmp_path: Path
) -> None:
    config = {"chat_template": codec.require_template().source, "tokenizer_class": "Qwen2Tokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    template = ChatTemplate.load(tmp_path, codec.require_tokenizer())
    with running_http(replace(codec, template=template)) as http:
        info = http.ask("GET", "/tokenizer_info").json
    assert info["tokenizer_class"] == "Qwen2Tokenizer"


def test_what_a_client_renders_by_itself_with(codec: TextCodec) -> None:
    tokenizer = codec.require_tokenizer()
    names = {"eos_token": "<|im_end|>"}
    named = ChatTemplate(codec.require_template().source, tokenizer, names)
    messages = [{"role": "user", "content": "it"}]
    with running_http(replace(codec, template=named)) as http:
        info = http.ask("GET", "/tokenizer_info").json
        theirs = tokenized(http, messages=messages)["tokens"]
        text = http.post("/detokenize", {"tokens": theirs}).json["prompt"]
    template = info.pop("chat_template")
    absent = dict.fromkeys(("bos_token", "pad_token", "unk_token"))
    general = {"tokenizer_class": "PreTrainedTokenizerFast"}
    assert info == {**absent, **names, **general, "model_max_length": codec.max_tokens}
    assert CompiledTemplate(template, {}).text(messages, True, [], {}) == text


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tokens": "text"},
        {"tokens": [1.5]},
        {"tokens": [-1]},
        {"tokens": [320]},
        {"tokens": [1] * 5000},
        {"tokens": [1], "model": "huge"},
    ],
)
def test_what_is_no_tokens_is_refused(http: HttpFront, fields: dict[str, Any]) -> None:
    assert http.post("/detokenize", fields).status in (400, 404)


def silent_stream(text: bytes) -> list[web.RouteDef]:
    """Return the route of a stream without an event until two keep-alives were sent."""

    async def handle(request: web.Request) -> web.StreamResponse:
        kept = asyncio.Event()
        asked = []

        def keep_alive() -> bytes:
            asked.append(text)
            if len(asked) == 2:
                kept.set()
            return text if len(asked) <= 2 else b""

        stream = EventStream(request, keep_alive, 0.01)
        await stream.prepare()
        try:
            await asyncio.wait_for(kept.wait(), HANG_SECONDS)
        finally:
            stream.keep_no_longer()
        await stream.end(b"data: end\n\n")
        return stream.response

    return [web.get("/metrics", handle)]


def test_a_silent_stream_is_kept_alive() -> None:
    with running_http(routes=silent_stream(KEEP_ALIVE_COMMENT)) as http:
        body = http.ask("GET", "/metrics").body
    assert body == KEEP_ALIVE_COMMENT * 2 + b"data: end\n\n"


def test_a_stream_that_says_something_is_left_alone(http: HttpFront) -> None:
    assert b": keep-alive" not in http.complete(stream=True).body


def status(http: HttpFront, host: str, path: str = "/v1/models") -> int:
    return http.ask("GET", path, headers={"Host": host}).status


def test_loopback_answers_to_its_own_names_only(http: HttpFront) -> None:
    for host in ("localhost", "LOCALHOST:9", "127.0.0.1:8000", "127.0.0.7", "[::1]:80"):
        assert status(http, host) == 200, host
    for host in ("evil.example", "evil.example:80", "localhost.evil.example", "10.0.0.1", ""):
        refused = http.ask("GET", "/v1/models", headers={"Host": host})
        assert refused.refusal == (421, "wrong_host"), host
        named = (
            f"Host {host.removesuffix(':80')} is not served" if host else "header Host is missing"
        )
        assert named in refused.error["message"]
    refused = http.complete({"Host": "evil.example"})
    assert refused.status == 421 and not http.engine.received
    assert [status(http, "10.0.0.1:9", path) for path in ("/health", "/ready")] == [200, 200]


@pytest.mark.parametrize(
    ("allowed", "expected"), [("api.example, [fd00::5]", 200), ("*", 200), ("other.example", 421)]
)
def test_more_names_are_served_where_they_are_listed(allowed: str, expected: int) -> None:
    with running_http(config=ServerConfig(allowed_hosts=allowed)) as http:
        assert status(http, "api.example:443") == expected
        assert status(http, "localhost") == 200
        if "fd00" in allowed:
            assert status(http, "[FD00::5]:80") == 200
            assert status(http, "evil.example") == 421


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("Node-1.Example.:80", "node-1.example"),
        ("[::1]", "::1"),
        ("", ""),
        (":80", ""),
    ],
)
def test_a_host_header_is_a_name_and_perhaps_a_port(header: str, name: str) -> None:
    assert host_name(header) == name
