"""GET /v1/responses as a WebSocket over a scripted engine: turns, refusals, bounds, ends."""

import asyncio
import json
import socket as sockets
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.server.auth.callers import ANYBODY
from tasuki.server.auth.limits import HeldBytes
from tasuki.server.auth.tenants import ANONYMOUS
from tasuki.server.config import ServerConfig
from tasuki.server.http.server import HttpServer
from tasuki.server.responses.endpoints import response_socket as served
from tasuki.server.responses.endpoints.response_socket import SocketTurns
from tasuki.server.responses.stored_responses import ResponseStore, StoredResponse, StoredTurn
from tasuki.server.text.chat_message import ChatMessage
from tasuki.server.text.text_codec import TextCodec
from tests.harness.agent_front import CALL, SCHEMA, THOUGHT, AgentFront, running_agent_front
from tests.harness.api_keys import headers, keys_file
from tests.harness.http_calls import named_events
from tests.harness.http_fixtures import running_http
from tests.harness.response_sockets import (
    MASK,
    Refused,
    ResponseClient,
    begun_frame,
    frame,
    response_socket,
    upgraded,
)
from tests.harness.waiting import until

TOOL = {"type": "function", "name": "weather", "description": "the end", "parameters": SCHEMA}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "rain"}


@pytest.fixture
def client(front: AgentFront) -> Iterator[ResponseClient]:
    with response_socket(front.http.server.address) as opened:
        yield opened


# --- Turns


def test_messages_are_a_stream_s_events(front: AgentFront, client: ResponseClient) -> None:
    front.say(f"{THOUGHT}I look.\n\n{CALL}")
    asked: dict[str, Any] = {"tools": [TOOL], "metadata": {"a": "b"}, "top_logprobs": 1}
    client.create(**asked)
    ours = client.events()
    body = {"input": "it was", "stream": True, **asked}
    theirs = named_events(front.http.post("/v1/responses", body))
    assert [event["type"] for event in ours] == [event["type"] for event in theirs]
    ended, streamed = ours[-1]["response"], theirs[-1]["response"]
    assert (ended["status"], ended["usage"]) == ("completed", streamed["usage"])
    assert [item["type"] for item in ended["output"]] == ["reasoning", "message", "function_call"]
    assert ended["metadata"] == {"a": "b"}
    assert front.submits()[0].prompt.tolist() == front.submits()[1].prompt.tolist()


def test_a_turn_goes_on_from_the_tokens_of_the_one_before_though_it_is_not_stored(
    front: AgentFront, client: ResponseClient
) -> None:
    said = [f"{THOUGHT}I look.\n\n{CALL}", f"{THOUGHT}It rains.", f"{THOUGHT}fine"]
    asked: dict[str, Any] = {"tools": [TOOL], "instructions": "be brief", "store": False}
    name: str | None = None
    turn: list[int] = []
    for answer, given in zip(said, ("it was", [RESULT], "and then"), strict=True):
        front.say(answer)
        told = client.response(**asked, input=given, previous_response_id=name)
        assert front.submits()[-1].prompt[: len(turn)].tolist() == turn
        name, turn = told["id"], front.turn()
        assert front.http.ask("GET", f"/v1/responses/{name}").status == 404
    assert front.prompt.endswith("and then<|im_end|>\n<|im_start|>assistant\n<think>\n")


def test_only_the_last_turn_is_kept_and_no_other_socket_has_it(
    front: AgentFront, client: ResponseClient
) -> None:
    first = client.response(store=False)["id"]
    second = client.response(store=False)["id"]
    missing = (400, "previous_response_not_found")
    assert client.refusal(store=False, previous_response_id=first) == missing
    assert client.response(previous_response_id=second)["status"] == "completed"
    last = client.response(store=False)["id"]
    with response_socket(front.http.server.address) as other:
        assert other.refusal(previous_response_id=last) == missing
        assert other.response()["status"] == "completed"


def test_a_stored_response_is_gone_on_from_anywhere(
    front: AgentFront, client: ResponseClient
) -> None:
    name = client.response()["id"]
    client.response(store=False)
    assert client.response(previous_response_id=name)["previous_response_id"] == name
    assert front.http.ask("GET", f"/v1/responses/{name}").json["id"] == name
    over_http = front.http.post("/v1/responses", {"input": "so", "previous_response_id": name})
    assert over_http.status == 200
    begun = client.response(previous_response_id=over_http.json["id"], store=False)
    assert begun["status"] == "completed"


def test_a_turn_that_fails_takes_the_one_before_with_it(
    front: AgentFront, client: ResponseClient
) -> None:
    missing = (400, "previous_response_not_found")
    failing: list[dict[str, Any]] = [
        *({"input": [RESULT]}, {"top_p": 9}, {"input": []}, {"model": "huge"})
    ]
    for wrong in failing:
        name = client.response(store=False)["id"]
        status, _ = client.refusal(store=False, previous_response_id=name, **wrong)
        assert status in (400, 404)
        assert client.refusal(store=False, previous_response_id=name) == missing
    name = client.response(store=False)["id"]
    front.http.engine.reject = m.RequestError(m.ErrorKind.TOO_LONG, "no")
    assert client.refusal(store=False, previous_response_id=name)[0] == 400
    front.http.engine.reject = None
    assert client.refusal(store=False, previous_response_id=name) == missing
    # A refused request without a previous response takes none away.
    name = client.response(store=False)["id"]
    assert client.refusal(top_p=9)[0] == 400
    assert client.response(store=False, previous_response_id=name)["status"] == "completed"


def test_a_prompt_is_computed_beforehand(front: AgentFront, client: ResponseClient) -> None:
    """Compute the part of the prompt common to any question, also in a conversation without a
    question yet."""
    asked: dict[str, Any] = {"tools": [TOOL], "store": False}
    front.http.engine.answer = lambda submit: []
    developer = {"role": "developer", "content": "be brief"}
    name: str | None = None
    for given in ([developer], "it was"):
        warm = client.response(**asked, input=given, generate=False, previous_response_id=name)
        assert (warm["status"], warm["output"]) == ("completed", [])
        submit = front.submits()[-1]
        assert submit.sampling.max_new_tokens == 0
        usage = warm["usage"]
        assert usage["input_tokens"] == len(submit.prompt) > 0 == usage["output_tokens"]
        name = warm["id"]
    computed = [submit.prompt.tolist() for submit in front.submits()]
    assert computed[1][: len(computed[0])] == computed[0]
    assert front.text(computed[0]).endswith("be brief<|im_end|>\n<|im_start|>user\n")
    assert front.text(computed[1]).endswith("it was<|im_end|>\n")
    front.say(f"{THOUGHT}fine")
    client.response(**asked, input="so", previous_response_id=name)
    anew = [developer, *({"role": "user", "content": text} for text in ("it was", "so"))]
    front.http.post("/v1/responses", {**asked, "input": anew})
    ours, theirs = front.submits()[-2:]
    assert ours.prompt.tolist() == theirs.prompt.tolist()
    assert ours.prompt[: len(computed[1])].tolist() == computed[1]


def test_where_there_is_nothing_to_compute_nothing_is(
    front: AgentFront, client: ResponseClient
) -> None:
    for fields in ({"input": []}, {"input": None}):
        empty = client.response(**fields, store=False, generate=False)
        assert (empty["status"], empty["output"]) == ("completed", [])
        assert empty["usage"]["total_tokens"] == 0 and not front.submits()
    told = client.response(store=False, previous_response_id=empty["id"])
    assert told["output"] and front.prompt.startswith("<|im_start|>user\nit was")


def test_each_response_has_a_name_of_its_own(front: AgentFront) -> None:
    with response_socket(front.http.server.address, {"x-request-id": "r"}) as client:
        client.response()
        client.response()
    assert [submit.request_id for submit in front.submits()] == ["r.1", "r.2"]


# --- Refusals


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "invalid"),
        ("7", "invalid"),
        ("[" * 1000, "invalid"),
        (b"\xff\xfe", "invalid"),
        ("{}", "invalid"),
        (json.dumps({"type": "response.cancel"}), "invalid"),
        (json.dumps({"type": "response.create", "input": "so", "stream": False}), "invalid"),
        (json.dumps({"type": "response.create", "input": "so", "background": True}), "invalid"),
        (json.dumps({"type": "response.create", "input": "so", "stop": ["x"]}), "invalid"),
    ],
    ids=str,
)
def test_a_wrong_message_is_refused_and_the_socket_stays(
    client: ResponseClient, text: str | bytes, code: str
) -> None:
    client.send(text)
    assert client.error() == (400, code)
    assert client.response(stream=True)["status"] == "completed"


def test_a_prompt_that_is_too_long_is_a_failed_response(client: ResponseClient) -> None:
    told = client.response(input="it " * 100_000)
    assert (told["status"], told["error"]["code"]) == ("failed", "context_length_exceeded")


def test_a_second_message_while_a_response_is_made_is_refused(
    front: AgentFront, client: ResponseClient
) -> None:
    front.http.engine.hold = True
    client.create()
    front.http.engine.wait_for(m.Submit)
    client.create()
    while (event := client.event())["type"] != "error":
        pass
    assert (event["status"], event["error"]["code"]) == (409, "response_in_progress")
    (submit,) = front.submits()
    front.http.engine.hold = False
    front.http.engine._finish(submit, m.FinishReason.STOP, 1)
    assert client.events()[-1]["type"] == "response.completed"
    assert client.response()["status"] == "completed"


def test_messages_may_follow_each_other_at_once(client: ResponseClient) -> None:
    for _ in range(30):
        assert client.response(store=False)["status"] == "completed"


def test_what_is_no_upgrade_is_refused_with_the_mend(front: AgentFront) -> None:
    refused = front.http.ask("GET", "/v1/responses")
    assert refused.refusal == (426, "no_websocket")
    assert refused.headers["Upgrade"] == "websocket" and "POST" in refused.error["message"]


def test_an_unread_error_of_the_engine_is_a_failed_response(
    front: AgentFront, client: ResponseClient
) -> None:
    front.http.engine.hold = True
    client.create()
    first = client.event()
    assert first["type"] == "response.created"
    client_of_engine, loop = front.http.front.client, front.http.front.loop
    loop.call_soon_threadsafe(client_of_engine.engine_lost, "it broke")
    assert client.events()[-1]["response"]["error"]["code"] == "server_error"
    assert client.refusal()[0] == 500


# --- Keys, origins, limits


def test_a_socket_needs_a_key_and_its_responses_are_that_key_s(
    codec: TextCodec, tmp_path: Path
) -> None:
    config = ServerConfig(api_keys=keys_file(tmp_path, "ann k1\nbob k2\nmet k3 metrics\n"))
    with running_agent_front(codec, config) as front:
        address = front.http.server.address
        for wrong, status in (({}, 401), (headers("k9"), 401), (headers("k3"), 403)):
            with pytest.raises(Refused) as refused, response_socket(address, wrong):
                pass
            assert refused.value.status == status
        with (
            response_socket(address, headers("k1")) as ann,
            response_socket(address, headers("k2")) as bob,
        ):
            name = ann.response()["id"]
            assert bob.refusal(previous_response_id=name) == (400, "previous_response_not_found")
            assert ann.response(previous_response_id=name)["status"] == "completed"
        assert {submit.caller for submit in front.submits()} == {"ann"}


def test_a_page_of_another_origin_opens_none(codec: TextCodec) -> None:
    with running_agent_front(codec, ServerConfig(allowed_origins="https://app.example")) as front:
        address = front.http.server.address
        for origin in ("https://app.example", f"http://{address}"):
            with response_socket(address, {"Origin": origin}) as client:
                assert client.response()["status"] == "completed"
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1", ""):
            with pytest.raises(Refused) as refused, response_socket(address, {"Origin": origin}):
                pass
            assert refused.value.status == 403
        with pytest.raises(Refused) as refused, response_socket(address, {"Host": "evil.example"}):
            pass
        assert refused.value.status == 421


def test_each_response_counts_against_the_rate(codec: TextCodec, tmp_path: Path) -> None:
    config = ServerConfig(api_keys=keys_file(tmp_path, "ann k1\nbob k2\n"), requests_per_minute=3)
    with (
        running_agent_front(codec, config) as front,
        response_socket(front.http.server.address, headers("k1")) as client,
    ):
        # The socket itself was the first request.
        client.response()
        client.response()
        client.create()
        refused = client.event()
        assert (refused["status"], refused["error"]["code"]) == (429, "rate_limited")
        assert int(refused["headers"]["retry-after"]) >= 1


def test_each_response_in_progress_counts_against_the_cap(codec: TextCodec, tmp_path: Path) -> None:
    config = ServerConfig(api_keys=keys_file(tmp_path, "ann k1\nbob k2\n"), requests_per_key=1)
    with running_agent_front(codec, config) as front:
        address = front.http.server.address
        front.http.engine.hold = True
        with (
            response_socket(address, headers("k1")) as first,
            response_socket(address, headers("k1")) as second,
        ):
            first.create()
            front.http.engine.wait_for(m.Submit)
            assert second.refusal() == (429, "request_limit")


def test_sockets_of_one_key_are_capped(codec: TextCodec, tmp_path: Path) -> None:
    config = ServerConfig(api_keys=keys_file(tmp_path, "ann k1\nbob k2\n"), max_connections=16)
    with running_agent_front(codec, config) as front:
        address = front.http.server.address
        with response_socket(address, headers("k1")), response_socket(address, headers("k1")):
            with pytest.raises(Refused) as refused, response_socket(address, headers("k1")):
                pass
            assert refused.value.status == 429
            with response_socket(address, headers("k2")) as other:
                assert other.response()["status"] == "completed"
        with response_socket(address, headers("k1")) as again:
            assert again.response()["status"] == "completed"


# --- Memory


def test_a_message_has_the_bound_of_a_body(codec: TextCodec) -> None:
    with (
        running_agent_front(codec, ServerConfig(max_message_mib=1)) as front,
        response_socket(front.http.server.address) as client,
    ):
        assert client.response(input="it " * 300_000)["status"] == "failed"
        client.send("x" * (2**20 + 2**17))
        assert client.error() == (413, "body_too_large")
        assert client.closed() == 1009
    until(lambda: front.held.total == 0, lambda: front.held.total)


def raw_socket(front: AgentFront, key: str | None = None) -> sockets.socket:
    """Return a connection after its upgrade to a WebSocket."""
    return upgraded(front.http.dial(), key)


def text_frame(text: str) -> bytes:
    """Return a text frame masked by zeros."""
    content = text.encode()
    return b"\x81\xfe" + len(content).to_bytes(2, "big") + b"\0\0\0\0" + content


def test_a_text_is_no_longer_than_the_loop_takes_at_once(client: ResponseClient) -> None:
    """Bound a text by the size the loop takes at once. Bodies of 32 MiB are read in pieces
    instead."""
    assert client.response(input="it " * 650_000)["status"] == "failed"
    client.send("x" * (2**21 + 2**17))
    assert client.error() == (413, "body_too_large")
    assert client.closed() == 1009


def test_many_small_pieces_of_a_message_count_by_their_memory(front: AgentFront) -> None:
    """Count the memory of pieces: two bytes a read are a separate object each."""
    raw, count = raw_socket(front), 100
    raw.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
    raw.sendall(begun_frame(2**20))

    def has_grown(seen: int) -> bool:
        return front.held.total > seen

    for _ in range(count):
        seen = front.held.total
        raw.send(b"ab")
        # Each piece must be a separate read.
        until(partial(has_grown, seen), seen)
    assert front.held.total > 50 * count
    raw.close()
    until(lambda: front.held.total == 0, lambda: front.held.total)


def test_pings_are_answered_between_messages_and_beside_a_response(front: AgentFront) -> None:
    raw = raw_socket(front)
    asked = json.dumps({"type": "response.create", "input": "it was"}).encode()
    masked = bytes(byte ^ MASK[place % 4] for place, byte in enumerate(asked))
    raw.sendall(frame(9, b"") * 3 + frame(1, masked) + frame(9, b"") * 2)
    received = b""
    while received.count(b"\x8a\x00") < 5 or b'"response.completed"' not in received:
        received += raw.recv(4096)
    raw.close()


def test_what_came_of_a_message_counts_against_its_caller(codec: TextCodec, tmp_path: Path) -> None:
    """Let one of several keys hold the bytes of eight messages of the largest size, heads of frames
    included."""
    keys = keys_file(tmp_path, "ann k1\nbob k2\n")
    with running_agent_front(codec, ServerConfig(max_message_mib=1, api_keys=keys)) as front:
        part = 2**20 - 1
        raws: list[sockets.socket] = []

        def holds(least: int) -> bool:
            return front.held.total >= least

        try:
            for count in range(1, 8):
                raws.append(raw_socket(front, "k1"))
                raws[-1].sendall(begun_frame(2**20) + b"x" * part)
                least = count * part
                until(partial(holds, least), lambda: front.held.total)
            raws.append(raw_socket(front, "k1"))
            # Together with the heads of the frames, this is too much.
            raws[-1].sendall(begun_frame(2**20) + b"x" * part)
            last = b""
            while piece := raws[-1].recv(4096):
                last += piece
            assert b'"status":503' in last and b'"code":"busy"' in last
            # The closing frame's code asks the client to try again.
            assert b"\x88" in last and (1013).to_bytes(2, "big") in last
            assert front.held.total <= 8 * 2**20
            with response_socket(front.http.server.address, headers("k2")) as other:
                assert other.response()["status"] == "completed"
        finally:
            for raw in raws:
                raw.close()
        until(lambda: front.held.total == 0, lambda: front.held.total)


def test_a_kept_turn_counts_until_the_socket_ends(front: AgentFront) -> None:
    with response_socket(front.http.server.address) as client:
        client.response(store=False, input="it was " * 500)
        until(lambda: 3000 < front.held.total < 2**15, lambda: front.held.total)
        client.response(store=False)
        until(lambda: 0 < front.held.total < 3000, lambda: front.held.total)
        assert client.refusal(previous_response_id="resp_x")[0] == 400
        assert front.held.total > 0
    until(lambda: front.held.total == 0, lambda: front.held.total)


def test_a_turn_that_may_not_be_kept_is_forgotten() -> None:
    held = HeldBytes(1 << 14)
    store = ResponseStore(lambda: 0.0, 0, 0, 1.0)

    def response(name: str, tokens: int) -> StoredResponse:
        turn = StoredTurn.of(np.zeros(tokens, dtype=np.int32), (ChatMessage("user", "it"),), b"")
        return StoredResponse(name, b"{}", turn)

    with held.hold(ANYBODY) as hold:
        turns = SocketTurns(store, hold)
        turns.put(ANONYMOUS, response("a", 100))
        assert turns.get(ANONYMOUS, "a") is not None and hold.size == response("a", 100).size
        turns.unstored(ANONYMOUS, response("b", 1 << 12))
        assert turns.get(ANONYMOUS, "a") is None and turns.get(ANONYMOUS, "b") is None
        assert hold.size == 0
        turns.unstored(ANONYMOUS, response("c", 100))
        turns.drop("b")
        assert turns.get(ANONYMOUS, "c") is not None
        turns.drop("c")
        assert turns.get(ANONYMOUS, "c") is None and hold.size == 0


# --- Ends


def test_a_client_that_leaves_ends_its_response(front: AgentFront) -> None:
    front.http.engine.hold = True
    for leave in ("close", "cut"):
        before = len(front.http.engine.of(m.Abort))
        with response_socket(front.http.server.address) as client:
            client.create()
            front.http.engine.wait_for(m.Submit, before + 1)
            if leave == "cut":
                client.cut()
        front.http.engine.wait_for(m.Abort, before + 1)
    until(lambda: front.held.total == 0, lambda: front.held.total)


def test_a_client_that_reads_nothing_is_waited_for_within_bounds(front: AgentFront) -> None:
    """Let the response wait for its client, with no more than a few events in memory."""
    tokens = front.codec.require_tokenizer().encode("</think>\n\n" + "it was " * 1500)
    front.http.engine.answer = lambda submit: [*tokens] * 2
    raw = raw_socket(front)
    raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
    raw.sendall(text_frame(json.dumps({"type": "response.create", "input": "so"})))
    front.http.engine.wait_for(m.Submit)
    until(lambda: front.held.total > 2**15, lambda: front.held.total)
    assert front.held.total < 2**20
    raw.close()
    until(lambda: front.held.total == 0, lambda: front.held.total)


def test_an_end_of_the_server_closes_idle_sockets_at_once(codec: TextCodec) -> None:
    with (
        running_agent_front(codec) as front,
        response_socket(front.http.server.address) as idle,
        response_socket(front.http.server.address) as answered,
    ):
        answered.response()
        loop = front.http.front.loop
        server = front.http.server
        assert isinstance(server, HttpServer)
        drained = asyncio.run_coroutine_threadsafe(server.drain(), loop)
        assert (idle.closed(), answered.closed()) == (1001, 1001)
        drained.result(10)


def test_a_node_that_leaves_closes_idle_sockets_and_serves_those_that_open(
    codec: TextCodec,
) -> None:
    with running_agent_front(codec) as front:
        with response_socket(front.http.server.address) as idle:
            idle.response()
            rotation = front.http.front.client.rotation
            front.http.front.loop.call_soon_threadsafe(rotation.leave)
            assert idle.closed() == 1001
        with response_socket(front.http.server.address) as late:
            assert late.response()["status"] == late.response()["status"] == "completed"


def test_an_idle_socket_is_no_call_that_a_drain_waits_for(
    front: AgentFront, client: ResponseClient
) -> None:
    client.response()
    calls = front.http.front.client.calls
    front.http.front.run(asyncio.wait_for(calls.over(), 10))
    front.http.engine.hold = True
    client.create()
    front.http.engine.wait_for(m.Submit, 2)
    waiting = asyncio.wait_for(calls.over(), 0.3)
    with pytest.raises(TimeoutError):
        front.http.front.run(waiting)


@pytest.mark.parametrize(
    ("bound", "code"), [("_IDLE_SECONDS", None), ("_LONGEST_SECONDS", "limit")]
)
def test_a_socket_ends_when_its_time_is_over(
    front: AgentFront, monkeypatch: pytest.MonkeyPatch, bound: str, code: str | None
) -> None:
    monkeypatch.setattr(served, bound, 0.3)
    with response_socket(front.http.server.address) as client:
        if code is not None:
            assert client.error() == (400, "websocket_connection_limit_reached")
        assert client.closed() == 1000


def test_front_workers_have_sockets_too(codec: TextCodec) -> None:
    with running_http(codec, workers=2) as front, response_socket(front.server.address) as client:
        first = client.response(store=False)
        begun = len(front.engine.of(m.Submit))
        told = client.response(store=False, previous_response_id=first["id"])
        assert told["status"] == "completed"
        # Stored responses belong to the node.
        name = client.response()["id"]
        for _ in range(3):
            with response_socket(front.server.address) as other:
                assert other.response(previous_response_id=name)["status"] == "completed"
        assert len(front.engine.of(m.Submit)) == begun + 5


def test_two_checks_fit_into_the_longest_silence() -> None:
    """An event right after a check hides one more check, so a silence lasts two of them."""
    assert 2 * served._SILENCE_SECONDS <= served.KEEP_ALIVE_SECONDS
