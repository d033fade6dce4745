"""Tests of /v1/conversations over a scripted engine: their items, and the responses added to
them."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tasuki.engine import messages as m
from tasuki.server.config import ServerConfig
from tasuki.server.openapi.responses_fields import NEW_CONVERSATION, NEW_CONVERSATION_ITEMS
from tasuki.server.text.text_codec import TextCodec
from tests.harness.agent_front import CALL, SCHEMA, THOUGHT, AgentFront, running_agent_front
from tests.harness.api_keys import headers, keys_file
from tests.harness.http_fixtures import running_http
from tests.harness.response_sockets import response_of, response_socket
from tests.harness.sdk_clients import openai, openai_client
from tests.harness.waiting import until

PATH = "/v1/conversations"
TOOL = {"type": "function", "name": "weather", "description": "the end", "parameters": SCHEMA}
IMAGE = {"type": "input_image", "image_url": "data:"}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "rain"}


@pytest.fixture(autouse=True)
def answer(front: AgentFront) -> None:
    front.say(f"{THOUGHT}fine")


def begun(front: AgentFront, key: dict[str, str] | None = None, **fields: Any) -> str:
    reply = front.http.post(PATH, fields, key)
    assert reply.status == 200, reply
    name: str = reply.json["id"]
    return name


def answered(front: AgentFront, name: str, **fields: Any) -> dict[str, Any]:
    reply = front.http.post("/v1/responses", {"input": "it was", "conversation": name, **fields})
    assert reply.status == 200, reply
    found: dict[str, Any] = reply.json
    return found


def items(front: AgentFront, name: str, query: str = "?order=asc&limit=100") -> list[Any]:
    reply = front.http.ask("GET", f"{PATH}/{name}/items{query}")
    assert reply.status == 200, reply
    found: list[Any] = reply.json["data"]
    return found


def kinds(found: list[Any]) -> list[str]:
    return [item.get("role") or item["type"] for item in found]


# --- Conversations by themselves


def test_the_client_of_openai_keeps_a_conversation(front: AgentFront) -> None:
    client = openai_client(front.http.server.address)
    made = client.conversations.create(
        metadata={"a": "b"}, items=[{"role": "user", "content": "it was"}]
    )
    assert (made.object, made.metadata) == ("conversation", {"a": "b"}) and made.created_at > 0
    assert client.conversations.retrieve(made.id) == made
    changed = client.conversations.update(made.id, metadata={"c": "d"})
    assert changed.metadata == client.conversations.retrieve(made.id).metadata == {"c": "d"}
    more: Any = [{"role": "assistant", "content": "so"}, {"role": "user", "content": "and then"}]
    added = client.conversations.items.create(made.id, items=more)
    assert [item.role for item in added.data] == ["assistant", "user"]  # type: ignore[union-attr]
    told = client.responses.create(model="tiny", input="it is", conversation=made.id)
    assert told.conversation is not None and told.conversation.id == made.id
    listed = client.conversations.items.list(made.id, order="asc")
    assert kinds([item.model_dump() for item in listed]) == [
        *("user", "assistant", "user", "user", "reasoning", "assistant")
    ]
    last = client.conversations.items.list(made.id).data[0]
    assert last.id is not None
    assert client.conversations.items.retrieve(last.id, conversation_id=made.id) == last
    client.conversations.items.delete(last.id, conversation_id=made.id)
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.retrieve(last.id, conversation_id=made.id)
    assert client.conversations.delete(made.id).deleted
    for refused in (client.conversations.retrieve, client.conversations.delete):
        with pytest.raises(openai.NotFoundError):
            refused(made.id)


def test_items_are_kept_whole_and_listed_by_pages(front: AgentFront) -> None:
    given: list[dict[str, Any]] = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "input_text", "text": "so"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "x"}]},
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
        RESULT,
    ]
    name = begun(front, items=given)
    found = items(front, name)
    assert kinds(found) == [
        *("developer", "user", "reasoning", "function_call", "function_call_output")
    ]
    assert found[0]["content"] == [{"type": "input_text", "text": "be brief"}]
    assert found[3]["arguments"] == "{}" and found[4]["output"] == "rain"
    assert len({item["id"] for item in found}) == 5
    newest = items(front, name, "?limit=2")
    assert newest == found[:2:-1]
    after = items(front, name, f"?limit=2&after={newest[-1]['id']}")
    assert after == found[2:0:-1]
    wrong = front.http.ask("GET", f"{PATH}/{name}/items?after=x")
    assert wrong.error["param"] == "after"


# --- Responses


def test_responses_add_to_it_and_go_on_from_its_tokens(front: AgentFront) -> None:
    name = begun(front)
    said = [f"{THOUGHT}I look.\n\n{CALL}", f"{THOUGHT}It rains.", f"{THOUGHT}fine"]
    turn: list[int] = []
    for answer, given in zip(said, ("it was", [RESULT], "and then"), strict=True):
        front.say(answer)
        told = answered(front, name, input=given, tools=[TOOL])
        assert front.submits()[-1].prompt[: len(turn)].tolist() == turn
        assert told["conversation"] == {"id": name} and told["previous_response_id"] is None
        turn = front.turn()
    assert kinds(items(front, name)) == [
        *("user", "reasoning", "assistant", "function_call", "function_call_output"),
        *("reasoning", "assistant", "user", "reasoning", "assistant"),
    ]
    # Items added in between follow the last turn's tokens.
    front.http.post(f"{PATH}/{name}/items", {"items": [{"role": "user", "content": "listen"}]})
    answered(front, name, tools=[TOOL])
    assert front.submits()[-1].prompt[: len(turn)].tolist() == turn
    rest = front.text(front.submits()[-1].prompt[len(turn) :])
    assert rest.index("listen") < rest.index("it was")


def test_a_changed_conversation_is_rendered_anew(front: AgentFront) -> None:
    name = begun(front)
    answered(front, name, input="forget this")
    first = items(front, name)[0]
    assert front.http.ask("DELETE", f"{PATH}/{name}/items/{first['id']}").json["id"] == name
    front.http.post(f"{PATH}/{name}/items", {"items": [{"role": "user", "content": "listen"}]})
    answered(front, name)
    assert "forget this" not in front.prompt
    assert front.prompt.index("fine") < front.prompt.index("listen") < front.prompt.index("it was")


def test_two_responses_at_once_are_both_in_it(front: AgentFront) -> None:
    name = begun(front)
    front.http.engine.hold = True
    two = [
        front.http.post(
            "/v1/responses", {"input": text, "conversation": name, "background": True}
        ).json["id"]
        for text in ("one", "two")
    ]

    def shown(name: str) -> dict[str, Any]:
        found: dict[str, Any] = front.http.ask("GET", f"/v1/responses/{name}").json
        return found

    for told in two:
        until(lambda told=told: shown(told)["output"] != [], told)  # type: ignore[misc]
    for submit in front.submits():
        front.http.engine._finish(submit, m.FinishReason.STOP, 1)
    for told in two:
        until(lambda told=told: shown(told)["status"] == "completed", told)  # type: ignore[misc]
    assert kinds(items(front, name)) == ["user", "reasoning", "assistant"] * 2
    front.http.engine.hold = False
    answered(front, name, input="three")
    assert all(text in front.prompt for text in ("one", "two", "three"))


def test_it_is_named_by_an_object_in_streams_and_on_sockets_too(front: AgentFront) -> None:
    name = begun(front)
    asked = {"input": "it was", "conversation": {"id": name}}
    streamed = response_of(front.http.post("/v1/responses", {**asked, "stream": True}))
    assert streamed["conversation"] == {"id": name}
    turn = front.turn()
    with response_socket(front.http.server.address) as client:
        assert client.response(**asked)["conversation"] == {"id": name}
        assert front.submits()[-1].prompt[: len(turn)].tolist() == turn
        missing = {**asked, "conversation": "conv_x"}
        assert client.refusal(**missing) == (404, "conversation_not_found")
    assert len(items(front, name)) == 6


def test_what_is_not_stored_adds_nothing(front: AgentFront) -> None:
    name = begun(front, items=[{"role": "user", "content": "listen"}])
    told = answered(front, name, store=False)
    assert "listen" in front.prompt and told["status"] == "completed"
    assert len(items(front, name)) == 1


# --- Refusals and bounds


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"conversation": "conv_x"}, 404, None),
        ({"conversation": 7}, 400, "conversation"),
        ({"conversation": {"name": "x"}}, 400, "conversation"),
        ({"conversation": "conv_x", "previous_response_id": "resp_x"}, 400, None),
    ],
    ids=str,
)
def test_a_wrong_name_is_refused(
    front: AgentFront, fields: dict[str, Any], status: int, param: str | None
) -> None:
    refused = front.http.post("/v1/responses", {"input": "it was", **fields})
    assert (refused.status, refused.error["param"]) == (status, param)


def test_it_stands_beside_no_previous_response(front: AgentFront) -> None:
    name = begun(front)
    told = front.http.post("/v1/responses", {"input": "it was"}).json["id"]
    both = {"input": "so", "conversation": name, "previous_response_id": told}
    refused = front.http.post("/v1/responses", both)
    assert (refused.status, refused.error["param"]) == (400, "conversation")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"items": [7]}, "items[0]"),
        ({"items": "so"}, "items"),
        ({"items": [{"role": "user", "content": "so"}] * 21}, "items"),
        ({"items": [{"type": "item_reference", "id": "msg_x"}]}, "items[0].id"),
        (
            {"items": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "items[0].content[0]",
        ),
        ({"metadata": {"a": 7}}, "metadata.a"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
        ({"name": "x"}, "name"),
    ],
    ids=str,
)
def test_wrong_items_and_metadata_are_refused(
    front: AgentFront, fields: dict[str, Any], param: str
) -> None:
    refused = front.http.post(PATH, fields)
    assert (refused.status, refused.error["param"]) == (400, param)


def test_no_items_may_be_given(front: AgentFront) -> None:
    name = begun(front, items=[])
    added = front.http.post(f"{PATH}/{name}/items", {"items": []})
    assert (added.status, added.json["data"]) == (200, [])
    for schema in (NEW_CONVERSATION, NEW_CONVERSATION_ITEMS):
        assert jsonschema.Draft202012Validator(schema).is_valid({"items": []})


def test_items_have_no_metadata_of_the_conversation(front: AgentFront) -> None:
    name = begun(front, metadata={"a": "b"})
    body = {"items": [{"role": "user", "content": "so"}], "metadata": {"a": "c"}}
    refused = front.http.post(f"{PATH}/{name}/items", body)
    assert (refused.status, refused.error["param"]) == (400, "metadata")
    assert items(front, name) == []


def test_it_is_its_key_s_alone(codec: TextCodec, tmp_path: Path) -> None:
    keys = keys_file(tmp_path, "ann k1\nbob k2\n")
    with running_agent_front(codec, ServerConfig(api_keys=keys)) as front:
        ann, bob = headers("k1"), headers("k2")
        name = begun(front, ann, items=[{"role": "user", "content": "so"}])
        (item,) = front.http.ask("GET", f"{PATH}/{name}/items", None, ann).json["data"]
        for method, path in (
            *(("GET", name), ("DELETE", name), ("GET", f"{name}/items")),
            *(("GET", f"{name}/items/{item['id']}"), ("DELETE", f"{name}/items/{item['id']}")),
        ):
            refused = front.http.ask(method, f"{PATH}/{path}", None, bob)
            assert refused.refusal == (404, "conversation_not_found")
        for path, body in ((name, {"metadata": {}}), (f"{name}/items", {"items": []})):
            assert front.http.post(f"{PATH}/{path}", body, bob).status == 404
        asked = {"input": "so", "conversation": name}
        assert front.http.post("/v1/responses", asked, bob).status == 404
        # A conversation's id is not a response's.
        for method in ("GET", "DELETE"):
            assert front.http.ask(method, f"/v1/responses/{name}", None, ann).status == 404
        assert front.http.post("/v1/responses", asked, ann).status == 200


def test_one_that_does_not_fit_is_refused_and_stays_as_it_was(codec: TextCodec) -> None:
    with running_agent_front(codec, ServerConfig(response_store_mib=1)) as front:
        name = begun(front)
        long = {"items": [{"role": "user", "content": "it " * 40_000}]}
        statuses = [front.http.post(f"{PATH}/{name}/items", long).status for _ in range(12)]
        assert statuses[0] == 200 and statuses[-1] == 400
        last = front.http.post(f"{PATH}/{name}/items", long)
        assert last.refusal == (400, "conversation_too_large")
        assert len(items(front, name)) == statuses.count(200)
    with running_agent_front(codec, ServerConfig(response_store_mib=0)) as front:
        assert front.http.post(PATH, {}).refusal == (400, "conversation_too_large")


def test_front_workers_refuse_it_by_name(codec: TextCodec) -> None:
    with running_http(codec, workers=2) as front:
        for method, path in (
            *(("POST", PATH), ("GET", f"{PATH}/x"), ("DELETE", f"{PATH}/x")),
            *(("POST", f"{PATH}/x/items"), ("GET", f"{PATH}/x/items/y")),
        ):
            assert front.ask(method, path, {}).refusal == (501, "not_served_here")
        refused = front.post("/v1/responses", {"input": "it was", "conversation": "conv_x"})
        assert (refused.status, refused.error["param"]) == (400, "conversation")


def test_a_conversation_has_no_more_items_than_a_response_goes_on_from(front: AgentFront) -> None:
    """Bound a conversation to 4096 items. Each call that changes or lists it reads all items on the
    event loop."""
    name = begun(front)
    some = [{"role": "user", "content": "so"}] * 20
    for _ in range(4096 // len(some)):
        assert front.http.post(f"{PATH}/{name}/items", {"items": some}).status == 200
    refused = front.http.post(f"{PATH}/{name}/items", {"items": some})
    assert refused.refusal == (400, "invalid")
    assert front.http.post(f"{PATH}/{name}/items", {"items": some[:1]}).status == 200
