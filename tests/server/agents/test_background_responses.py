"""Responses with background: true over a scripted engine: made, fetched, followed, cancelled."""

import asyncio
import gc
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tasuki.engine import messages as m
from tasuki.server.config import ServerConfig
from tasuki.server.http.server import HttpServer
from tasuki.server.responses.endpoints.background import EventLog
from tasuki.server.responses.response_writer import ResponseWriter
from tasuki.server.text.text_codec import TextCodec
from tests.harness.agent_front import THOUGHT, AgentFront, running_agent_front
from tests.harness.api_keys import headers, keys_file
from tests.harness.http_calls import JSON, Reply, named_events
from tests.harness.http_fixtures import running_http
from tests.harness.response_sockets import response_of
from tests.harness.waiting import until

PATH = "/v1/responses"


@pytest.fixture(autouse=True)
def answer(front: AgentFront) -> None:
    front.say(f"{THOUGHT}fine")


def begun(front: AgentFront, key: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    reply = front.http.post(PATH, {"input": "it was", "background": True, **fields}, key)
    assert reply.status == 200, reply
    found: dict[str, Any] = reply.json
    return found


def fetched(front: AgentFront, name: str, query: str = "") -> Reply:
    return front.http.ask("GET", f"{PATH}/{name}{query}")


def ended(front: AgentFront, name: str) -> dict[str, Any]:
    until(lambda: fetched(front, name).json["status"] not in ("queued", "in_progress"), name)
    found: dict[str, Any] = fetched(front, name).json
    return found


def release(front: AgentFront) -> None:
    """Let the engine end the newest request."""
    submit = front.submits()[-1]
    front.http.engine._finish(submit, m.FinishReason.STOP, 1)


def test_a_response_is_made_though_nobody_waits(front: AgentFront) -> None:
    front.http.engine.hold = True
    first = begun(front)
    assert (first["status"], first["background"], first["output"]) == ("queued", True, [])
    front.http.engine.wait_for(m.Submit)
    until(lambda: fetched(front, first["id"]).json["output"] != [], "no item came")
    running = fetched(front, first["id"]).json
    assert running["status"] == "in_progress" and running["output"][0]["type"] == "reasoning"
    release(front)
    told = ended(front, first["id"])
    assert (told["status"], told["id"]) == ("completed", first["id"])
    opened = named_events(fetched(front, first["id"], "?stream=true"))[:3]
    assert [event["type"] for event in opened] == [
        *("response.created", "response.queued", "response.in_progress"),
    ]
    assert [event["response"]["status"] for event in opened] == ["queued", "queued", "in_progress"]
    assert told["output"][-1]["content"][0]["text"] == "fine" and told["usage"]["total_tokens"] > 0
    # The response is stored like any other.
    front.http.engine.hold = False
    turn = front.turn()
    going_on = {"input": "so", "previous_response_id": first["id"]}
    assert front.http.post(PATH, going_on).status == 200
    assert front.submits()[-1].prompt[: len(turn)].tolist() == turn


def test_events_are_followed_from_any_place(front: AgentFront) -> None:
    front.http.engine.hold = True
    connection = front.http.connect()
    body = json.dumps({"input": "it was", "background": True, "stream": True})
    connection.request("POST", PATH, body, JSON)
    response = connection.getresponse()
    line = response.readline() + response.readline()
    name = json.loads(line.partition(b"data: ")[2])["response"]["id"]
    # The client leaves, and the response goes on.
    connection.close()
    front.http.engine.wait_for(m.Submit)
    release(front)
    ended(front, name)
    assert not front.http.engine.of(m.Abort)
    followed = fetched(front, name, "?stream=true")
    whole = named_events(followed)
    assert response_of(followed) == fetched(front, name).json
    for after in (0, 3, len(whole) - 2, len(whole) - 1, 10**9):
        rest = fetched(front, name, f"?stream=true&starting_after={after}")
        found = named_events(rest) if rest.body else []
        assert found == whole[after + 1 :]


def test_a_follower_gets_what_is_still_to_come(front: AgentFront) -> None:
    front.http.engine.hold = True
    name = begun(front)["id"]
    front.http.engine.wait_for(m.Submit)
    connection = front.http.connect()
    connection.request("GET", f"{PATH}/{name}?stream=true&starting_after=1")
    response = connection.getresponse()
    first = json.loads(response.readline() and response.readline().partition(b"data: ")[2])
    assert first["sequence_number"] == 2
    release(front)
    rest = response.read()
    connection.close()
    assert b"event: response.completed" in rest


def test_a_response_is_cancelled(front: AgentFront) -> None:
    front.http.engine.hold = True
    name = begun(front)["id"]
    front.http.engine.wait_for(m.Submit)
    for _ in range(2):
        cancelled = front.http.post(f"{PATH}/{name}/cancel", None)
        assert (cancelled.status, cancelled.json["status"]) == (200, "cancelled")
    front.http.engine.wait_for(m.Abort)
    assert fetched(front, name).json["status"] == "cancelled"
    events = named_events(fetched(front, name, "?stream=true"))
    assert events[-1]["type"] == "response.cancelled"
    until(lambda: front.http.front.client.calls._count == 0, "it is still in progress")


def test_a_response_that_has_ended_is_not_changed_by_a_cancel(front: AgentFront) -> None:
    told = ended(front, begun(front)["id"])
    cancelled = front.http.post(f"{PATH}/{told['id']}/cancel", None)
    assert cancelled.json == told
    plain = front.http.post(PATH, {"input": "it was"}).json["id"]
    assert front.http.post(f"{PATH}/{plain}/cancel", None).refusal == (400, "not_in_background")
    assert front.http.post(f"{PATH}/resp_x/cancel", None).refusal == (404, "response_not_found")
    assert fetched(front, plain, "?stream=true").status == 400
    assert fetched(front, plain, "?stream=perhaps").error["param"] == "stream"
    refused = fetched(front, told["id"], "?stream=true&starting_after=x")
    assert refused.error["param"] == "starting_after"


def test_one_that_fails_is_fetched_with_its_error(front: AgentFront) -> None:
    front.http.engine.reject = m.RequestError(m.ErrorKind.TOO_LONG, "no room")
    told = ended(front, begun(front)["id"])
    assert told["status"] == "failed" and told["error"]["code"] == "context_length_exceeded"
    front.http.engine.reject = None
    assert front.http.post(f"{PATH}/{told['id']}/cancel", None).json["status"] == "failed"


def test_a_deleted_one_is_cancelled(front: AgentFront) -> None:
    front.http.engine.hold = True
    name = begun(front)["id"]
    front.http.engine.wait_for(m.Submit)
    assert front.http.ask("DELETE", f"{PATH}/{name}").json["deleted"]
    front.http.engine.wait_for(m.Abort)
    assert fetched(front, name).status == 404
    assert front.http.ask("DELETE", f"{PATH}/{name}").status == 404


def test_it_is_its_key_s_and_counts_against_it(codec: TextCodec, tmp_path: Path) -> None:
    keys = keys_file(tmp_path, "ann k1\nbob k2\n")
    config = ServerConfig(api_keys=keys, requests_per_key=2)
    with running_agent_front(codec, config) as front:
        front.http.engine.hold = True
        name = begun(front, headers("k1"))["id"]
        front.http.engine.wait_for(m.Submit)
        assert front.held.total > 0
        for method, path in (("GET", ""), ("GET", "?stream=true"), ("DELETE", "")):
            asked = front.http.ask(method, f"{PATH}/{name}{path}", None, headers("k2"))
            assert asked.status == 404
        other = front.http.post(f"{PATH}/{name}/cancel", None, headers("k2"))
        assert other.status == 404 and not front.http.engine.of(m.Abort)
        second = begun(front, headers("k1"))["id"]
        front.http.engine.wait_for(m.Submit, 2)
        assert front.http.post(PATH, {"input": "so"}, headers("k1")).status == 429
        for submit in front.submits():
            front.http.engine._finish(submit, m.FinishReason.STOP, 1)
        until(
            lambda: front.http.ask("GET", f"{PATH}/{second}", None, headers("k1")).status == 200,
            "it has not ended",
        )
        assert front.http.post(f"{PATH}/{name}/cancel", None, headers("k1")).status == 200
        assert front.http.ask("DELETE", f"{PATH}/{name}", None, headers("k1")).status == 200


def test_a_drain_waits_for_it_and_an_end_of_the_server_ends_it(codec: TextCodec) -> None:
    with running_agent_front(codec) as front:
        front.http.engine.hold = True
        begun(front)
        front.http.engine.wait_for(m.Submit)
        client = front.http.front.client
        with pytest.raises(TimeoutError):
            front.http.front.run(asyncio.wait_for(client.calls.over(), 0.3))
        loop = front.http.front.loop
        server = front.http.server
        assert isinstance(server, HttpServer)
        drained = asyncio.run_coroutine_threadsafe(server.drain(), loop)
        front.http.engine.wait_for(m.Abort)
        drained.result(10)
        front.http.front.run(asyncio.wait_for(client.calls.over(), 10))
        until(lambda: front.held.total == 0, lambda: front.held.total)


@pytest.mark.parametrize("fields", [{"store": False}, {"background": 1}], ids=str)
def test_what_could_not_be_fetched_is_refused(front: AgentFront, fields: dict[str, Any]) -> None:
    refused = front.http.post(PATH, {"input": "it was", "background": True, **fields})
    assert (refused.status, refused.error["param"]) == (400, next(iter(fields)))


def test_front_workers_refuse_it_by_name(codec: TextCodec) -> None:
    with running_http(codec, workers=2) as front:
        refused = front.post(PATH, {"input": "it was", "background": True})
        assert (refused.status, refused.error["param"]) == (400, "background")
        plain = front.post(PATH, {"input": "it was"}).json["id"]
        cancelled = front.post(f"{PATH}/{plain}/cancel", None)
        assert cancelled.refusal == (400, "not_in_background")


def test_of_an_ended_response_neither_request_nor_writer_is_kept(front: AgentFront) -> None:
    """Keep neither: each takes tens of KiB outside every count."""
    count = 50
    for name in [begun(front)["id"] for _ in range(count)]:
        ended(front, name)
    gc.collect()
    kept = [found for found in gc.get_objects() if type(found) in (ResponseWriter, web.Request)]
    assert len(kept) < count // 2, len(kept)
    # The events, and the objects around them.
    assert front.held.total > 4096 * count


def test_a_deleted_response_counts_no_longer(front: AgentFront) -> None:
    name = begun(front)["id"]
    ended(front, name)
    assert front.held.total > 0
    assert front.http.ask("DELETE", f"{PATH}/{name}").status == 200
    until(lambda: front.held.total == 0, lambda: front.held.total)


def test_a_client_that_does_not_read_keeps_one_event() -> None:
    """Return long events one at a time, without a copy. The first events are long, since each has
    the request's echoes."""
    events = EventLog()
    long, short = b"event: a\ndata: " + b"x" * 2**20 + b"\n\n", b"event: b\ndata: 1\n\n"
    events.add(long * 2 + short * 100)
    first, place = events.since(0)
    assert (first, place) == (long, 1)
    assert events.since(0)[0] is first, "no copy"
    assert events.since(1) == (long, 2)
    assert events.since(2) == (short * 64, 66)
    assert events.since(66) == (short * 36, 102)
    assert events.since(102) == (b"", 102)
    events.drop()
    assert events.since(0) == (b"", 0) and events.closed
