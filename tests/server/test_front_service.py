"""The gRPC services over a scripted engine: streaming, aborts, and an error for every bad field."""

import threading
import time
from functools import partial
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tasuki.engine import messages as m
from tasuki.proto import inference_pb2 as pb
from tasuki.server.config import ServerConfig
from tasuki.server.text.text_codec import TextCodec
from tests.harness.grpc_calls import GrpcCalls, ids
from tests.harness.grpc_fixtures import Front, running_front
from tests.harness.refusals import INVALID, refusal
from tests.harness.waiting import HANG_SECONDS


@pytest.fixture
def calls(front: Front) -> GrpcCalls:
    return front.calls


def held(front: Front) -> Any:
    """Start the answer "r" and return its call after the first token. The answer then goes on."""
    front.engine.hold = True
    call = front.calls.generate(1, request_id="r")
    next(call)
    return call


def held_turn(front: Front, *tokens: int) -> tuple[str, Any]:
    """Start a session with these tokens and the answer "r". Return both after the first token; the
    answer then goes on."""
    front.engine.hold = True
    session = front.calls.open()
    front.calls.append(session, *tokens)
    call = front.calls.turn(session, request_id="r")
    next(call)
    return session, call


@pytest.mark.usefixtures("each_front")
def test_generate_streams_tokens_text_and_usage(
    front: Front, calls: GrpcCalls, codec: TextCodec
) -> None:
    answer = [*codec.require_tokenizer().encode("fine 漢"), 2]
    front.engine.answer = lambda submit: answer
    sampling = pb.Sampling(max_new_tokens=9, temperature=0.5, seed=3, stop_token_ids=[2])
    call = calls.generate(
        5, 6, 7, request_id="r1", sampling=sampling, cache_salt=b"tenant", marks=[2]
    )
    assert dict(call.initial_metadata())["tasuki-request-id"] == "r1"
    *chunks, last = list(call)
    assert [token for item in chunks for token in item.chunk.token_ids] == answer
    assert "".join(item.chunk.text for item in chunks) == "fine 漢"
    for item in chunks:
        count = len(item.chunk.token_ids)
        assert item.chunk.margins == [1.5] * count and item.chunk.logprobs == [-0.5] * count
    assert last.finished.reason == pb.FINISH_REASON_STOP
    told = last.finished.usage
    assert (told.prompt_tokens, told.hit.usable_tokens, told.hit.causes["new"]) == (3, 2, 1)
    assert told.transfer.bytes == 4096 and told.prefilled_on == "p0"
    (submit,) = front.engine.of(m.Submit)
    assert submit.prompt.dtype == np.int32 and submit.prompt.tolist() == [5, 6, 7]
    assert (submit.salt, submit.marks, submit.cursor) == (b"tenant", (2,), None)
    assert (submit.sampling.max_new_tokens, submit.sampling.seed) == (9, 3)
    assert submit.sampling.stop_token_ids == (2,)


def test_messages_carry_their_ends_as_marks(front: Front, calls: GrpcCalls) -> None:
    messages = [pb.Message(role="system", content="a"), pb.Message(role="user", content="b")]
    list(calls.generate(messages=pb.Messages(items=messages)))
    (submit,) = front.engine.of(m.Submit)
    assert len(submit.marks) == 2 and submit.marks[1] < len(submit.prompt)


@pytest.mark.usefixtures("each_front")
@pytest.mark.parametrize("tokens_before", [0, 3])
def test_a_client_that_leaves_aborts_its_request(
    front: Front, calls: GrpcCalls, tokens_before: int
) -> None:
    front.engine.hold = True
    front.engine.answer = lambda submit: [7] * tokens_before
    call = calls.generate(1, request_id="r")
    while tokens_before:
        tokens_before -= len(next(call).chunk.token_ids)
    front.engine.wait_for(m.Submit)
    call.cancel()
    assert front.engine.wait_for(m.Abort)[0].request_id == "r"


@pytest.mark.usefixtures("each_front")
def test_a_deadline_aborts_the_request(front: Front, calls: GrpcCalls) -> None:
    front.engine.hold = True
    seconds = 0.3
    # A stalled machine may pass the deadline before the request begins; retry with more time.
    while not (begun := front.engine.of(m.Submit)):
        request = pb.GenerateRequest(request_id=f"within {seconds}", token_ids=ids(1))
        refused = refusal(calls.inference.Generate, request, timeout=seconds)
        assert refused.status is grpc.StatusCode.DEADLINE_EXCEEDED
        seconds *= 2
    aborted = {message.request_id for message in front.engine.wait_for(m.Abort, len(begun))}
    assert aborted >= {submit.request_id for submit in begun}


@pytest.mark.usefixtures("each_front")
def test_an_abort_ends_the_stream_and_may_be_repeated(front: Front, calls: GrpcCalls) -> None:
    call = held(front)
    calls.abort("r")
    assert list(call)[-1].finished.reason == pb.FINISH_REASON_ABORT
    calls.abort("r")
    assert len(front.engine.wait_for(m.Abort, 2)) == 2


@pytest.mark.usefixtures("each_front")
def test_an_id_in_flight_is_refused_and_free_again_afterwards(
    front: Front, calls: GrpcCalls
) -> None:
    first = held(front)
    refused = refusal(calls.generate, 1, request_id="r")
    assert refused.typed == (grpc.StatusCode.ALREADY_EXISTS, "duplicate_request")
    assert "request_id 'r'" in refused.message
    assert not front.engine.of(m.Abort), "the duplicate aborted the original"
    calls.abort("r")
    list(first)
    front.engine.hold = False
    assert list(calls.generate(1, request_id="r"))[-1].HasField("finished")


def test_a_reader_that_does_not_read_is_cut_off(codec: TextCodec) -> None:
    with running_front(codec, queue_limit=8) as front:
        released = threading.Event()

        def flood(submit: m.Submit) -> list[int]:
            # The event loop must not run in between, as if the client's window were full.
            front.loop.call_soon_threadsafe(released.wait, HANG_SECONDS)
            return [7] * 100

        front.engine.answer = flood
        front.engine.hold = True
        call = front.calls.generate(1, request_id="r")
        # The engine takes this message after it has delivered all the others.
        front.engine.post(m.CloseCursor(1))
        front.engine.wait_for(m.CloseCursor)
        released.set()
        refused = refusal(list, call)
        assert refused.typed == (grpc.StatusCode.RESOURCE_EXHAUSTED, "slow_reader")
        front.engine.wait_for(m.Abort)


@pytest.mark.parametrize(
    ("request_fields", "kind", "part"),
    [
        ({}, "invalid", "prompt is empty"),
        ({"token_ids": ids()}, "invalid", "prompt is empty"),
        ({"text": ""}, "invalid", "prompt is empty"),
        ({"token_ids": ids(1, 320)}, "invalid", "token_ids has 320"),
        ({"token_ids": ids(-1)}, "invalid", "token_ids has -1"),
        ({"token_ids": ids(*[1] * 4096)}, "too_long", "context is 4096"),
        ({"messages": pb.Messages()}, "invalid", "messages is empty"),
        ({"messages": pb.Messages(items=[pb.Message(role="root")])}, "invalid", "role is 'root'"),
        ({"token_ids": ids(1), "marks": [2]}, "invalid", "marks has 2"),
        ({"token_ids": ids(1, 2), "marks": [2, 1]}, "invalid", "marks must ascend"),
        ({"token_ids": ids(1), "request_id": "a\nb"}, "invalid", "request_id"),
        ({"token_ids": ids(1), "cache_salt": b"x" * 257}, "invalid", "cache_salt"),
    ],
)
def test_bad_requests_name_the_field(
    front: Front,
    calls: GrpcCalls,
    request_fields: dict[str, object],
    kind: str,
    part: str,
) -> None:
    refused = refusal(calls.generate, **request_fields)
    assert refused.typed == (INVALID, kind)
    assert part in refused.message
    assert not front.engine.of(m.Submit)


@pytest.mark.parametrize(
    ("sampling", "part"),
    [
        (pb.Sampling(max_new_tokens=-1), "sampling.max_new_tokens"),
        (pb.Sampling(max_new_tokens=-5), "sampling.max_new_tokens"),
        (pb.Sampling(temperature=-1), "sampling.temperature"),
        (pb.Sampling(temperature=float("nan")), "sampling.temperature"),
        (pb.Sampling(temperature=float("inf")), "sampling.temperature"),
        (pb.Sampling(temperature=3e38), "sampling.temperature"),
        (pb.Sampling(top_k=-1), "sampling.top_k"),
        (pb.Sampling(top_p=0), "sampling.top_p"),
        (pb.Sampling(top_p=1.5), "sampling.top_p"),
        (pb.Sampling(stop_token_ids=[320]), "sampling.stop_token_ids"),
        (pb.Sampling(stop_token_ids=[1] * 257), "sampling.stop_token_ids"),
        (pb.Sampling(min_p=float("nan")), "sampling.min_p"),
        (pb.Sampling(presence_penalty=2.5), "sampling.presence_penalty"),
        (pb.Sampling(frequency_penalty=-2.5), "sampling.frequency_penalty"),
        (pb.Sampling(repetition_penalty=0), "sampling.repetition_penalty"),
        (pb.Sampling(logit_bias={5: 200}), "sampling.logit_bias"),
        (pb.Sampling(logit_bias={320: 1}), "sampling.logit_bias"),
        (pb.Sampling(logit_bias={-1: 1}), "sampling.logit_bias"),
        (pb.Sampling(min_tokens=65), "sampling.min_tokens"),
        (pb.Sampling(bad_words=["x"] * 129), "sampling.bad_words"),
        (pb.Sampling(bad_words=[""]), "sampling.bad_words"),
        (pb.Sampling(allowed_token_ids=[320]), "sampling.allowed_token_ids"),
        (pb.Sampling(top_logprobs=21), "sampling.top_logprobs"),
    ],
)
def test_bad_sampling_names_the_field(calls: GrpcCalls, sampling: pb.Sampling, part: str) -> None:
    refused = refusal(calls.generate, 1, sampling=sampling)
    assert refused.typed == (INVALID, "invalid")
    assert part in refused.message


def test_what_changes_the_logits_reaches_the_engine(
    front: Front, calls: GrpcCalls, codec: TextCodec
) -> None:
    sampling = pb.Sampling(
        min_p=0.5,
        presence_penalty=1.5,
        frequency_penalty=-0.5,
        repetition_penalty=2,
        logit_bias={7: -100, 5: 1.5},
        min_tokens=2,
        bad_words=["was"],
        allowed_token_ids=[4, 9],
        top_logprobs=3,
    )
    front.engine.answer = lambda submit: [4, 9]
    *chunks, _ = list(calls.generate(token_ids=ids(1), sampling=sampling))
    tops = [list(top.token_ids) for item in chunks for top in item.chunk.top]
    assert tops == [[4, 5, 6], [9, 10, 11]]
    assert list(chunks[0].chunk.top[0].logprobs) == [-0.5, -1.5, -2.5]
    (submit,) = front.engine.of(m.Submit)
    asked = submit.sampling
    assert (asked.min_p, asked.presence_penalty, asked.frequency_penalty) == (0.5, 1.5, -0.5)
    assert (asked.repetition_penalty, asked.min_tokens, asked.top_logprobs) == (2.0, 2, 3)
    assert asked.logit_bias == ((5, 1.5), (7, -100.0))
    assert asked.allowed_token_ids == (4, 9)
    assert asked.bad_words[0] == tuple(codec.require_tokenizer().encode("was"))


def test_every_token_is_every_token_however_it_is_written(front: Front, calls: GrpcCalls) -> None:
    sampling = pb.Sampling(top_k=2**31 - 1, top_p=1e-30, temperature=1e-30)
    list(calls.generate(token_ids=ids(1), sampling=sampling))
    (submit,) = front.engine.of(m.Submit)
    asked = submit.sampling
    assert (asked.top_k, asked.top_p, asked.temperature) == (0, 1e-6, 0.0)


def test_malformed_bytes_are_refused(front: Front) -> None:
    generate = front.channel.unary_stream("/tasuki.v1.Inference/Generate")
    streamed = refusal(generate, b"\xff\xff\xff\xff")
    assert streamed.typed == (INVALID, "invalid") and "GenerateRequest" in streamed.message
    append = front.channel.unary_unary("/tasuki.v1.Session/Append")
    assert refusal(append, b"\x0a\xff").status is INVALID
    assert not front.engine.of(m.Submit)


def test_a_checkpoint_without_a_tokenizer_takes_token_ids_only() -> None:
    messages = pb.Messages(items=[pb.Message(role="user")])
    with running_front() as front:
        for prompt in ({"text": "x"}, {"messages": messages}):
            refused = refusal(front.calls.generate, **prompt)
            assert refused.status is INVALID and "send token_ids" in refused.message
        *chunks, last = list(front.calls.generate(1))
        assert [token for item in chunks for token in item.chunk.token_ids] == [7, 8, 9]
        assert not any(item.chunk.text for item in chunks) and last.HasField("finished")


def test_a_lost_engine_ends_what_is_in_flight(front: Front, calls: GrpcCalls) -> None:
    call = held(front)
    front.loop.call_soon_threadsafe(front.client.engine_lost, "the engine died")
    for failing in (call, calls.generate(1)):
        refused = refusal(list, failing)
        assert refused.typed == (grpc.StatusCode.INTERNAL, "internal")
        assert refused.message == "the engine died"
    assert refusal(calls.stats).message == "the engine died"


@pytest.mark.usefixtures("each_front")
def test_admin_tells_counts_and_drains_after_the_last_request(
    front: Front, calls: GrpcCalls
) -> None:
    stats = calls.stats()
    assert (stats.pages["total"], stats.slots["free"], stats.lost["new"]) == (9, 2, 5)
    assert stats.integrity == "ok"
    assert calls.admin.Flush(pb.FlushRequest()).dropped == 4
    call = held(front)
    draining = calls.admin.Drain.future(pb.DrainRequest())
    front.engine.wait_for(m.Drain)
    assert not draining.done()
    calls.abort("r")
    draining.result(timeout=HANG_SECONDS)
    assert list(call)[-1].finished.reason == pb.FINISH_REASON_ABORT


@pytest.mark.usefixtures("each_front")
def test_a_drain_that_is_taken_back_tells_who_waits_for_it(front: Front, calls: GrpcCalls) -> None:
    call = held(front)
    draining = calls.admin.Drain.future(pb.DrainRequest())
    front.engine.wait_for(m.Drain)
    calls.admin.Undrain(pb.UndrainRequest(), timeout=HANG_SECONDS)
    refused = refusal(draining.result, timeout=HANG_SECONDS)
    assert refused.status is grpc.StatusCode.ABORTED and "drain it once more" in refused.message
    call.cancel()
    # A stopping node stays in this state.
    front.run(front.client.retire())
    refused = refusal(calls.admin.Undrain, pb.UndrainRequest(), timeout=HANG_SECONDS)
    assert refused.status is grpc.StatusCode.UNAVAILABLE and "being stopped" in refused.message
    assert len(front.engine.of(m.Undrain)) == 1


def test_health_names_every_service_and_ends_with_the_server(front: Front) -> None:
    health = health_pb2_grpc.HealthStub(front.channel)
    serving = health_pb2.HealthCheckResponse
    for name in ("", "tasuki.v1.Inference", "tasuki.v1.Session", "tasuki.v1.CacheAdmin"):
        assert health.Check(health_pb2.HealthCheckRequest(service=name)).status == serving.SERVING
    watch = health.Watch(health_pb2.HealthCheckRequest())
    assert next(watch).status == serving.SERVING
    front.run(front.server.refuse_traffic())
    assert next(watch).status == serving.NOT_SERVING
    watch.cancel()


@pytest.mark.usefixtures("each_front")
def test_turns_send_only_what_is_new(front: Front, calls: GrpcCalls, codec: TextCodec) -> None:
    tokenizer, template = codec.require_tokenizer(), codec.require_template()
    front.engine.answer = lambda submit: [*tokenizer.encode("good"), 2]
    session = calls.open(b"s")

    calls.say(session, ("system", "be kind"), ("user", "hi"))
    list(calls.turn(session))
    added = calls.say(session, ("user", "go on"))
    list(calls.turn(session))
    first, second = front.engine.of(m.Submit)
    assert tokenizer.decode(first.prompt) == "system\nbe kind\nuser\nhi\nassistant\n"
    assert tokenizer.decode(second.prompt).endswith("hi\nassistant\ngood\nuser\ngo on\nassistant\n")
    assert second.prompt[: len(first.prompt)].tolist() == first.prompt.tolist()
    assert added.appended_tokens < len(first.prompt)
    assert len(second.prompt) == added.total_tokens + len(template.answer_opening())
    assert list(second.prompt).count(2) == 4, "the answer's own end token was repeated"
    assert (first.cursor, second.cursor, second.salt) == (1, 1, b"s")
    assert second.marks[: len(first.marks)] == first.marks and len(second.marks) == 3


@pytest.mark.usefixtures("each_front")
def test_an_answer_cut_by_length_is_closed_before_the_next_message(
    front: Front, calls: GrpcCalls, codec: TextCodec
) -> None:
    tokenizer = codec.require_tokenizer()
    front.engine.answer = lambda submit: tokenizer.encode("goo")
    session = calls.open()
    for text in ("hi", "on"):
        calls.say(session, ("user", text))
        list(calls.turn(session))
    second = front.engine.of(m.Submit)[1].prompt
    assert tokenizer.decode(second) == "user\nhi\nassistant\ngoo\nuser\non\nassistant\n"
    assert list(second).count(2) == 3


@pytest.mark.usefixtures("each_front")
def test_a_session_outlives_any_number_of_turns_that_end_without_an_answer(
    front: Front, calls: GrpcCalls
) -> None:
    session = calls.open()
    calls.say(session, ("user", "hi"))
    front.engine.reject = m.RequestError(m.ErrorKind.INTERNAL, "not this turn")
    for _ in range(60):
        assert refusal(calls.turn, session).message == "not this turn"
    front.engine.reject = None
    prompts = {tuple(submit.prompt.tolist()) for submit in front.engine.of(m.Submit)}
    assert len(prompts) == 1 and len(front.engine.of(m.Submit)) == 60
    list(calls.turn(session))
    assert tuple(front.engine.of(m.Submit)[-1].prompt.tolist()) in prompts


@pytest.mark.usefixtures("each_front")
def test_a_turn_that_did_not_finish_leaves_the_log_as_it_was(
    front: Front, calls: GrpcCalls
) -> None:
    session, call = held_turn(front, 1, 2, 3)
    busy = refusal(calls.turn, session, request_id="s")
    assert busy.typed == (grpc.StatusCode.FAILED_PRECONDITION, "session_busy")
    call.cancel()
    front.engine.wait_for(m.Abort)
    front.engine.hold = False
    deadline = time.monotonic() + HANG_SECONDS
    while True:
        try:
            reply = calls.append(session, 4)
            break
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert time.monotonic() < deadline, "the cancelled turn never let go of its session"
    assert reply.total_tokens == 4
    list(calls.turn(session))
    assert front.engine.of(m.Submit)[-1].prompt.tolist() == [1, 2, 3, 4]


@pytest.mark.usefixtures("each_front")
def test_forks_go_separate_ways(front: Front, calls: GrpcCalls) -> None:
    origin = calls.open(b"s")
    calls.append(origin, 1, 2)
    fork = calls.fork(origin)
    assert front.engine.of(m.ForkCursor)[0].cursor == 1
    for session, token in ((origin, 3), (fork, 4)):
        calls.append(session, token)
        list(calls.turn(session))
    submits = front.engine.of(m.Submit)
    assert [submit.prompt.tolist() for submit in submits] == [[1, 2, 3], [1, 2, 4]]
    assert [(submit.cursor, submit.salt) for submit in submits] == [(1, b"s"), (2, b"s")]


@pytest.mark.usefixtures("each_front")
def test_closing_a_session_closes_its_cursor_once(front: Front, calls: GrpcCalls) -> None:
    session = calls.open()
    calls.close(session)
    assert [message.cursor for message in front.engine.wait_for(m.CloseCursor)] == [1]
    for call in (calls.close, partial(calls.append, token_ids=ids(1)), calls.fork, calls.turn):
        refused = refusal(call, session)
        assert refused.status is grpc.StatusCode.NOT_FOUND
        assert repr(session) in refused.message


@pytest.mark.usefixtures("each_front")
def test_a_session_closed_during_its_turn_closes_the_cursor_afterwards(
    front: Front, calls: GrpcCalls
) -> None:
    session, call = held_turn(front, 1)
    calls.close(session)
    assert not front.engine.of(m.CloseCursor)
    calls.abort("r")
    list(call)
    assert front.engine.wait_for(m.CloseCursor)[0].cursor == 1


@pytest.mark.usefixtures("each_front")
def test_a_turn_taken_back_takes_its_cursor_along(front: Front, calls: GrpcCalls) -> None:
    """Use a new cursor after a turn is taken back. The engine may have published the lost answer
    under the old one, and a cursor is trusted unread."""
    session, call = held_turn(front, 1)
    calls.abort("r")
    list(call)
    assert front.engine.wait_for(m.CloseCursor)[0].cursor == 1
    front.engine.hold = False
    list(calls.turn(session))
    list(calls.turn(session))
    assert [submit.cursor for submit in front.engine.of(m.Submit)] == [1, 2, 2]


@pytest.mark.usefixtures("each_front")
def test_sessions_are_limited(codec: TextCodec) -> None:
    with running_front(codec, ServerConfig(max_sessions=1)) as front:
        calls = front.calls
        first = calls.open()
        for refused in (refusal(calls.open), refusal(calls.fork, first)):
            assert refused.status is grpc.StatusCode.RESOURCE_EXHAUSTED
        calls.close(first)
        calls.open()


@pytest.mark.usefixtures("each_front")
def test_idle_sessions_give_way(codec: TextCodec) -> None:
    config = ServerConfig(max_sessions=1, session_idle_seconds=0.0)
    with running_front(codec, config) as front:
        front.calls.open()
        front.calls.open()
        assert front.engine.wait_for(m.CloseCursor)[0].cursor == 1


@pytest.mark.usefixtures("each_front")
def test_empty_and_oversized_sessions_are_refused(front: Front, calls: GrpcCalls) -> None:
    session = calls.open()
    unfilled = refusal(calls.turn, session)
    assert unfilled.status is INVALID and "append" in unfilled.message
    for tokens, part in ((ids(), "input is empty"), (ids(*[1] * 5000), "context is 4096")):
        assert part in refusal(calls.append, session, token_ids=tokens).message
