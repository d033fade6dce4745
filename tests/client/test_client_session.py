"""Tests of the client's side over a real server and a scripted engine."""

import _thread
import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator

import grpc
import pytest

from tasuki.cli.demo import compare
from tasuki.cli.prompt_answers import answer_all, as_json, as_text
from tasuki.client.aio import AsyncClient
from tasuki.client.answer import Answer
from tasuki.client.channel import run
from tasuki.client.errors import ClientError
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client
from tasuki.engine import messages as m
from tests.harness.grpc_fixtures import Front, usage
from tests.harness.waiting import HANG_SECONDS


@pytest.fixture
def client(front: Front) -> Iterator[Client]:
    with Client(front.address) as client:
        yield client


def test_an_answer_streams_and_then_is_whole(front: Front, client: Client) -> None:
    stream = client.generate(Prompt(token_ids=[5, 6]), max_new_tokens=3, temperature=0.5)
    pieces = list(stream)
    answer = stream.result()
    assert [token for piece in pieces for token in piece.token_ids] == [7, 8, 9]
    assert answer.token_ids == (7, 8, 9)
    assert answer.text == "".join(piece.text for piece in pieces) == "%&'"
    assert answer.reason is m.FinishReason.STOP
    assert answer.usage == usage(2, 3)
    assert answer.margins == (1.5,) * 3 and answer.logprobs == (-0.5,) * 3
    (submit,) = front.engine.of(m.Submit)
    assert (submit.sampling.max_new_tokens, submit.sampling.temperature) == (3, 0.5)


def test_a_session_appends_forks_and_closes(front: Front, client: Client) -> None:
    with client.open_session(b"salt") as session:
        assert session.append(Prompt(token_ids=[1, 2])) == 2
        session.generate().result()
        fork = session.fork()
        assert session.append(Prompt(token_ids=[3])) == 6
        assert fork.append(Prompt(token_ids=[4, 5])) == 7
        fork.close()
        assert client.stats().sessions == 1
    assert client.stats().sessions == 0
    assert {message.cursor for message in front.engine.wait_for(m.CloseCursor, 2)} == {1, 2}


def test_cancelling_a_stream_aborts_the_request(front: Front, client: Client) -> None:
    front.engine.hold = True
    stream = client.generate(Prompt(text="it was"), request_id="r")
    next(iter(stream))
    stream.cancel()
    assert front.engine.wait_for(m.Abort)[0].request_id == "r"
    with pytest.raises(ClientError) as caught:
        stream.result()
    assert caught.value.status is grpc.StatusCode.CANCELLED


def test_a_dropped_stream_aborts_the_request(front: Front, client: Client) -> None:
    front.engine.hold = True
    stream = client.generate(Prompt(text="it was"), request_id="r")
    next(iter(stream))
    del stream
    gc.collect()
    assert front.engine.wait_for(m.Abort)[0].request_id == "r"


def test_a_stream_cancelled_by_another_thread_ends(front: Front, client: Client) -> None:
    front.engine.hold = True
    stream = client.generate(Prompt(text="it was"))
    pieces = iter(stream)
    next(pieces)
    threading.Timer(0.1, stream.cancel).start()
    with pytest.raises(ClientError) as caught:
        list(pieces)
    assert caught.value.status is grpc.StatusCode.CANCELLED


def test_an_iterator_closed_early_leaves_the_rest_to_be_read(client: Client) -> None:
    stream = client.generate(Prompt(token_ids=[5, 6]))
    pieces = iter(stream)
    next(pieces)
    pieces.close()
    assert stream.result().token_ids == (7, 8, 9)


def test_an_interrupt_ends_a_blocking_read(front: Front, client: Client) -> None:
    front.engine.hold = True
    stream = client.generate(Prompt(text="it was"), request_id="r")
    pieces = iter(stream)
    next(pieces)
    threading.Timer(0.1, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        list(pieces)
    stream.cancel()
    assert front.engine.wait_for(m.Abort)[0].request_id == "r"
    assert client.stats().sessions == 0


def test_a_failed_answer_fails_alike_when_asked_again(front: Front, client: Client) -> None:
    failed = client.generate(Prompt(token_ids=[999]))
    for _ in range(2):
        with pytest.raises(ClientError, match="token_ids has 999"):
            failed.result()

    async def ask_twice() -> None:
        async with AsyncClient(front.address) as client:
            failed = client.generate(Prompt(token_ids=[999]))
            for _ in range(2):
                with pytest.raises(ClientError, match="token_ids has 999"):
                    await failed.result()

    asyncio.run(ask_twice())


FORKED = """
import os, sys
from tasuki.client.session import Client

def sessions():
    with Client(sys.argv[1]) as client:
        return client.stats().sessions

with Client(sys.argv[1]):
    child = os.fork()
    if not child:
        os._exit(sessions())
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_opens_a_client_of_its_own(front: Front) -> None:
    """Let a forked child open its own client. The child would hang if the parent had run a loop of
    gRPC's asyncio part."""
    parent = [sys.executable, "-c", FORKED, front.address]
    assert subprocess.run(parent, timeout=HANG_SECONDS).returncode == 0


def test_blocking_calls_need_no_loop() -> None:
    with pytest.raises(RuntimeError, match="suspended"):
        run(asyncio.sleep(0))


def test_errors_are_typed(front: Front, client: Client) -> None:
    with pytest.raises(ClientError, match="token_ids has 999") as caught:
        client.generate(Prompt(token_ids=[999])).result()
    assert caught.value.status is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.kind == "invalid"


def test_a_server_that_is_gone_is_a_typed_error() -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(ClientError) as caught:
        client.stats()
    assert caught.value.status is grpc.StatusCode.UNAVAILABLE
    assert caught.value.kind is None


def test_a_prompt_is_exactly_one_thing() -> None:
    for fields in ({}, {"text": "a", "token_ids": [1]}):
        with pytest.raises(ValueError, match="exactly one"):
            Prompt(**fields)


def test_prompts_run_at_once_and_answer_in_order(front: Front, client: Client) -> None:
    front.engine.answer = lambda submit: [int(submit.prompt[0]) + 1]
    prompts = [Prompt(token_ids=[number]) for number in range(20)]
    answers = answer_all(client, prompts, [[]] * len(prompts), {"max_new_tokens": 1})
    assert [answer.token_ids for answer in answers] == [(number + 1,) for number in range(20)]


def test_what_generate_prints(client: Client) -> None:
    answer = client.generate(Prompt(token_ids=[5, 6, 7])).result()
    told = as_json(answer)
    assert told["token_ids"] == [7, 8, 9] and told["text"] == "%&'"
    assert told["usage"]["hit"]["causes"] == {"new": 1}
    text = as_text(4, answer, with_ids=True)
    for part in ("prompt 4: stop", "tokens 7 8 9", "3 tokens of KV, 2 usable", "new 1", "p0"):
        assert part in text


def answer(tokens: list[int], margin: float = 1.0) -> Answer:
    size = len(tokens)
    told = usage(3, size)
    reason = m.FinishReason.LENGTH
    return Answer(tuple(tokens), "", reason, told, (-0.5,) * size, (margin,) * size)


def test_equal_runs_are_equal() -> None:
    verdict = compare([answer([1, 2]), answer([3])], [answer([1, 2]), answer([3])])
    assert verdict.equal and verdict.tokens == 3 and str(verdict).startswith("EQUAL: 3 tokens")


@pytest.mark.parametrize("ours", [[1, 9], [1], [1, 2, 3]])
def test_a_clear_difference_is_named(ours: list[int]) -> None:
    verdict = compare([answer([5]), answer(ours)], [answer([5]), answer([1, 2])])
    assert not verdict.equal
    assert verdict.difference == (2, 2 if len(ours) == 3 else 1)
    assert str(verdict).startswith("NOT EQUAL")


def test_a_near_tie_is_reported_and_must_be_rare() -> None:
    same = [7] * 1500
    oracle = [answer(same), answer([1, 2], margin=5e-4)]
    rare = compare([answer(same), answer([1, 9, 9])], oracle)
    assert rare.equal and rare.ties == ((2, 1),) and "near tie in turn 2" in str(rare)
    assert not compare([answer([1, 9])], [answer([1, 2], margin=5e-4)]).equal
