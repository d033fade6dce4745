"""Tests of /openapi.json and /docs. The description names every route with its needs, and its
schemas hold for real answers. /docs is one page and runs its own script only."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from tasuki.server.auth.surfaces import ANY_METHOD, HTTP
from tasuki.server.config import ServerConfig
from tasuki.server.openapi.document import OPERATIONS, SOCKETS, document
from tasuki.server.text.text_codec import TextCodec
from tests.harness.agent_front import CALL, AgentFront
from tests.harness.http_calls import Reply
from tests.harness.http_fixtures import HttpFront, running_http

USER = [{"role": "user", "content": "it was"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
KEY = {"Authorization": "Bearer a-key-of-a-caller"}


@pytest.fixture
def described(front: AgentFront) -> dict[str, Any]:
    found: dict[str, Any] = front.http.ask("GET", "/openapi.json").json
    return found


def test_every_route_is_an_operation() -> None:
    assert OPERATIONS.keys() == {surface for surface in HTTP if surface[0] != ANY_METHOD} - SOCKETS


def test_a_node_describes_the_routes_that_it_serves(described: dict[str, Any]) -> None:
    assert described["openapi"] == "3.1.0"
    assert "/v1/responses/{name}/input_items" in described["paths"]
    # These routes belong to a node's dashboard and to `tasuki dashboard`.
    assert not {"/debug/tree", "/fleet/nodes"} & described["paths"].keys()


def test_its_schemas_are_schemas_and_its_references_lead_somewhere() -> None:
    found = document(HTTP, "1", keyed=True)
    for schema in found["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for name in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(found)):
        assert name in found["components"]["schemas"]
    names = [
        operation["operationId"] for path in found["paths"].values() for operation in path.values()
    ]
    assert len(names) == len({*names}) == len(OPERATIONS)


def test_keys_are_named_where_they_are_asked_for() -> None:
    paths = document(HTTP, "1", keyed=True)["paths"]
    assert paths["/v1/models"]["get"]["security"] == [{"bearer": []}, {"key": []}]
    assert paths["/health"]["get"]["security"] == []
    assert document(HTTP, "1", keyed=False)["paths"]["/v1/models"]["get"]["security"] == []


def schema_of(described: dict[str, Any], method: str, path: str, reply: Reply) -> dict[str, Any]:
    """Return the schema of the reply's body; fail if the body is not described."""
    answers = described["paths"][path][method.lower()]["responses"]
    content = answers[str(reply.status)]["content"]
    kind = reply.headers["Content-Type"].partition(";")[0]
    return {**content[kind]["schema"], "components": described["components"]}


def test_a_stream_of_events_has_no_schema_of_a_whole_body() -> None:
    paths = document(HTTP, "1", keyed=True)["paths"]
    streams = [
        answer["text/event-stream"]
        for path in paths.values()
        for operation in path.values()
        for answer in [operation["responses"]["200"]["content"]]
        if "text/event-stream" in answer
    ]
    assert len(streams) >= 6
    assert not any(streams)


def check(described: dict[str, Any], method: str, path: str, reply: Reply) -> None:
    jsonschema.validate(reply.json, schema_of(described, method, path, reply))


CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
TOOL = {"name": "weather", "input_schema": SCHEMA}
FLAT = {"type": "function", "name": "weather", "parameters": SCHEMA}
ASKED: list[tuple[str, dict[str, Any]]] = [
    (CHATS, {"messages": USER}),
    (CHATS, {"messages": USER, "n": 2, "logprobs": True, "top_logprobs": 2}),
    (CHATS, {"messages": USER, "tools": [FUNCTION]}),
    (CHATS, {"messages": USER, "max_tokens": 1}),
    (COMPLETIONS, {"prompt": ["it was", [5, 6]], "logprobs": 1, "echo": True}),
    (MESSAGES, {"messages": USER, "max_tokens": 50, "tools": [TOOL]}),
    (MESSAGES, {"messages": USER, "max_tokens": 50, "thinking": {"type": "adaptive"}}),
    (f"{MESSAGES}/count_tokens", {"messages": USER}),
    (RESPONSES, {"input": "it was", "tools": [FLAT]}),
    (RESPONSES, {"input": "it was", "max_output_tokens": 1}),
    (f"{RESPONSES}/input_tokens", {"input": "it was"}),
    ("/tokenize", {"prompt": "it was", "return_token_strs": True}),
    ("/tokenize", {"prompt": "it was"}),
    ("/detokenize", {"tokens": [5]}),
    # These are refused.
    (CHATS, {"messages": []}),
    (CHATS, {"messages": USER, "model": "odd"}),
    (MESSAGES, {"messages": USER}),
    (MESSAGES, {"messages": USER, "max_tokens": 5, "model": "odd"}),
    (RESPONSES, {"input": "it was", "odd": 1}),
    ("/detokenize", {}),
]


@pytest.mark.parametrize(("path", "body"), ASKED)
def test_answers_are_as_they_are_described(
    front: AgentFront, described: dict[str, Any], path: str, body: dict[str, Any]
) -> None:
    front.say(f"it was so\n</think>\n\nso\n{CALL}" if "tools" in body else "it\n</think>\n\nfine")
    reply = front.http.post(path, body)
    check(described, "POST", path, reply)
    sent = described["components"]["schemas"]
    operation = described["paths"][path]["post"]
    name = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = sent[name.rpartition("/")[2]]
    # The schema says nothing of unknown model names.
    assert jsonschema.Draft202012Validator(schema).is_valid(body) is (reply.status in (200, 404))


@pytest.mark.parametrize("path", [CHATS, COMPLETIONS, MESSAGES, RESPONSES])
def test_streams_are_described(front: AgentFront, described: dict[str, Any], path: str) -> None:
    body = next(body for asked, body in ASKED if asked == path)
    reply = front.http.post(path, {**body, "stream": True})
    assert reply.status == 200
    content = described["paths"][path]["post"]["responses"]["200"]["content"]
    assert reply.headers["Content-Type"].partition(";")[0] in content


@pytest.mark.parametrize(
    "path", ["/health", "/healthz", "/ping", "/ready", "/version", "/v1/models", "/tokenizer_info"]
)
def test_what_is_got_is_as_described(
    front: AgentFront, described: dict[str, Any], path: str
) -> None:
    check(described, "GET", path, front.http.ask("GET", path))


def test_models_and_stored_responses_are_as_described(
    front: AgentFront, described: dict[str, Any]
) -> None:
    name = front.http.post(RESPONSES, {"input": "it was"}).json["id"]
    for method, path in (
        ("GET", "/v1/models/{name}"),
        ("GET", "/v1/responses/{name}"),
        ("GET", "/v1/responses/{name}/input_items"),
        ("DELETE", "/v1/responses/{name}"),
        ("GET", "/v1/responses/{name}"),
    ):
        named = path.replace("{name}", "tiny" if "models" in path else name)
        check(described, method, path, front.http.ask(method, named))


@pytest.fixture
def keyed(codec: TextCodec) -> Iterator[HttpFront]:
    with running_http(codec, ServerConfig(api_key="a-key-of-a-caller")) as running:
        yield running


def test_the_document_asks_for_a_key_and_the_page_does_not(keyed: HttpFront) -> None:
    assert keyed.ask("GET", "/openapi.json").status == 401
    found = keyed.ask("GET", "/openapi.json", headers=KEY)
    assert found.status == 200
    assert found.json["paths"]["/v1/models"]["get"]["security"]
    assert b"a-key-of-a-caller" not in found.body
    assert keyed.ask("GET", "/docs").status == 200


@pytest.mark.parametrize("path", ["/openapi.json", "/docs"])
def test_who_has_it_is_sent_nothing(front: AgentFront, path: str) -> None:
    tag = front.http.ask("GET", path).headers["ETag"]
    for held in (tag, f'"odd", W/{tag}', "*"):
        again = front.http.ask("GET", path, headers={"If-None-Match": held})
        assert (again.status, again.body, again.headers["ETag"]) == (304, b"", tag)
    assert front.http.ask("GET", path, headers={"If-None-Match": '"odd"'}).status == 200


def test_the_page_is_whole_and_runs_its_own_script_alone(front: AgentFront) -> None:
    reply = front.http.ask("GET", "/docs")
    page, policy = reply.body.decode(), reply.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy and reply.headers["X-Content-Type-Options"] == "nosniff"
    assert page.count("<script>") == page.count("<script") == 1
    assert not re.search(r'\b(src|href)="(?!/openapi\.json"|data:,")', page)
    assert not re.search(r"https?://|innerHTML|\son\w+=|style=", page)


def test_a_front_worker_describes_what_it_hands_on_too(codec: TextCodec) -> None:
    with running_http(codec, workers=2) as http:
        paths = http.ask("GET", "/openapi.json").json["paths"]
        assert {"/v1/chat/completions", "/v1/responses/{name}", "/debug/tree"} <= paths.keys()
        assert http.ask("GET", "/docs").status == 200
