"""The gRPC services over a scripted engine: streaming, aborts, and an error for every bad field."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tasuki.engine import messages as m
from tasuki.proto import inference_pb2 as pb
from tasuki.proto import inference_pb2_grpc as pb_grpc
from tasuki.server.config import ServerConfig
from tasuki.server.errors import ERROR_KIND_KEY
from tasuki.server.text.text_codec import TextCodec

from tests.harness.front_fixtures import Front, running_front, text_codec
from tests.harness.waiting import HANG_SECONDS

INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture
def codec(tmp_path: Path) -> TextCodec:
    return text_codec(tmp_path)


@pytest.fixture
def front(codec: TextCodec) -> Iterator[Front]:
    with running_front(codec) as running:
        yield running


@pytest.fixture
def channel(front: Front) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(front.address) as channel:
        yield channel


@pytest.fixture
def inference(channel: grpc.Channel) -> pb_grpc.InferenceStub:
    return pb_grpc.InferenceStub(channel)


@pytest.fixture
def sessions(channel: grpc.Channel) -> pb_grpc.SessionStub:
    return pb_grpc.SessionStub(channel)


def ids(*tokens: int) -> pb.TokenIds:
    return pb.TokenIds(ids=tokens)


def failure(call: "grpc.Call") -> tuple[grpc.StatusCode, str, str]:
    """Status, `tasuki-error-kind` and message of a call that must fail."""
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    error = caught.value
    return error.code(), dict(error.trailing_metadata())[ERROR_KIND_KEY], error.details()


def test_generate_streams_tokens_text_and_usage(
    front: Front, inference: pb_grpc.InferenceStub, codec: TextCodec
) -> None:
    answer = [*codec.require_tokenizer().encode("fine 漢"), 2]
    front.engine.answer = lambda submit: answer
    call = inference.Generate(
        pb.GenerateRequest(
            request_id="r1",
            token_ids=ids(5, 6, 7),
            sampling=pb.Sampling(max_new_tokens=9, temperature=0.5, seed=3, stop_token_ids=[2]),
            cache_salt=b"tenant",
            marks=[2],
        )
    )
    assert dict(call.initial_metadata())["tasuki-request-id"] == "r1"
    *chunks, last = list(call)
    assert [token for item in chunks for token in item.chunk.token_ids] == answer
    assert "".join(item.chunk.text for item in chunks) == "fine 漢"
    assert chunks[0].chunk.margins == [1.5] and chunks[0].chunk.logprobs == [-0.5]
    assert last.finished.reason == pb.FINISH_REASON_STOP
    told = last.finished.usage
    assert (told.prompt_tokens, told.hit.usable_tokens, told.hit.causes["new"]) == (3, 2, 1)
    assert told.transfer.bytes == 4096 and told.prefilled_on == "p0"
    (submit,) = front.engine.of(m.Submit)
    assert submit.prompt.dtype == np.int32 and submit.prompt.tolist() == [5, 6, 7]
    assert (submit.salt, submit.marks, submit.cursor) == (b"tenant", (2,), None)
    assert (submit.sampling.max_new_tokens, submit.sampling.seed) == (9, 3)
    assert submit.sampling.stop_token_ids == (2,)


def test_messages_carry_their_ends_as_marks(front: Front, inference: pb_grpc.InferenceStub) -> None:
    messages = [pb.Message(role="system", content="a"), pb.Message(role="user", content="b")]
    list(inference.Generate(pb.GenerateRequest(messages=pb.Messages(items=messages))))
    (submit,) = front.engine.of(m.Submit)
    assert len(submit.marks) == 2 and submit.marks[1] < len(submit.prompt)


def test_headers_come_before_the_first_token(
    front: Front, inference: pb_grpc.InferenceStub, sessions: pb_grpc.SessionStub
) -> None:
    front.engine.hold = True
    front.engine.answer = lambda submit: []
    session = sessions.Open(pb.SessionOpenRequest()).session_id
    sessions.Append(pb.SessionAppendRequest(session_id=session, token_ids=ids(1)))
    starts = (
        lambda: inference.Generate(pb.GenerateRequest(token_ids=ids(1))),
        lambda: sessions.Generate(pb.SessionGenerateRequest(session_id=session)),
    )
    for start in starts:
        call = start()
        # No token ever comes.
        assert dict(call.initial_metadata())["tasuki-request-id"]
        call.cancel()


@pytest.mark.parametrize("tokens_before", [0, 3])
def test_a_client_that_leaves_aborts_its_request(
    front: Front, inference: pb_grpc.InferenceStub, tokens_before: int
) -> None:
    front.engine.hold = True
    front.engine.answer = lambda submit: [7] * tokens_before
    call = inference.Generate(pb.GenerateRequest(request_id="r", token_ids=ids(1)))
    for _ in range(tokens_before):
        next(call)
    front.engine.wait_for(m.Submit)
    call.cancel()
    assert front.engine.wait_for(m.Abort)[0].request_id == "r"


def test_a_deadline_aborts_the_request(front: Front, inference: pb_grpc.InferenceStub) -> None:
    front.engine.hold = True
    call = inference.Generate(pb.GenerateRequest(request_id="r", token_ids=ids(1)), timeout=0.3)
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert front.engine.wait_for(m.Abort)[0].request_id == "r"


def test_an_abort_ends_the_stream_and_may_be_repeated(
    front: Front, inference: pb_grpc.InferenceStub
) -> None:
    front.engine.hold = True
    call = inference.Generate(pb.GenerateRequest(request_id="r", token_ids=ids(1)))
    next(call)
    inference.Abort(pb.AbortRequest(request_id="r"))
    assert list(call)[-1].finished.reason == pb.FINISH_REASON_ABORT
    inference.Abort(pb.AbortRequest(request_id="r"))
    assert len(front.engine.wait_for(m.Abort, 2)) == 2


def test_an_id_in_flight_is_refused_and_free_again_afterwards(
    front: Front, inference: pb_grpc.InferenceStub
) -> None:
    front.engine.hold = True
    request = pb.GenerateRequest(request_id="r", token_ids=ids(1))
    first = inference.Generate(request)
    next(first)
    status, kind, message = failure(inference.Generate(request))
    assert (status, kind) == (grpc.StatusCode.ALREADY_EXISTS, "duplicate_request")
    assert "request_id 'r'" in message
    assert not front.engine.of(m.Abort), "the duplicate aborted the original"
    inference.Abort(pb.AbortRequest(request_id="r"))
    list(first)
    front.engine.hold = False
    assert list(inference.Generate(request))[-1].HasField("finished")


def test_a_reader_that_does_not_read_is_cut_off(codec: TextCodec) -> None:
    with running_front(codec, queue_limit=8) as front:
        released = threading.Event()

        def flood(submit: m.Submit) -> list[int]:
            # The event loop must not run in between, as if the client's window were full.
            front.loop.call_soon_threadsafe(released.wait, 5)
            return [7] * 100

        front.engine.answer = flood
        front.engine.hold = True
        with grpc.insecure_channel(front.address) as channel:
            call = pb_grpc.InferenceStub(channel).Generate(
                pb.GenerateRequest(request_id="r", token_ids=ids(1))
            )
            front.engine.wait_for(m.Submit)
            released.set()
            status, kind, _ = failure(call)
        assert (status, kind) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "slow_reader")
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
    inference: pb_grpc.InferenceStub,
    request_fields: dict[str, object],
    kind: str,
    part: str,
) -> None:
    status, told, message = failure(inference.Generate(pb.GenerateRequest(**request_fields)))
    assert (status, told) == (INVALID, kind)
    assert part in message
    assert not front.engine.of(m.Submit)


@pytest.mark.parametrize(
    ("sampling", "part"),
    [
        (pb.Sampling(max_new_tokens=0), "sampling.max_new_tokens"),
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
    ],
)
def test_bad_sampling_names_the_field(
    inference: pb_grpc.InferenceStub, sampling: pb.Sampling, part: str
) -> None:
    request = pb.GenerateRequest(token_ids=ids(1), sampling=sampling)
    status, kind, message = failure(inference.Generate(request))
    assert (status, kind) == (INVALID, "invalid")
    assert part in message


def test_every_token_is_every_token_however_it_is_written(
    front: Front, inference: pb_grpc.InferenceStub
) -> None:
    sampling = pb.Sampling(top_k=2**31 - 1, top_p=1e-30, temperature=1e-30)
    list(inference.Generate(pb.GenerateRequest(token_ids=ids(1), sampling=sampling)))
    (submit,) = front.engine.of(m.Submit)
    asked = submit.sampling
    assert (asked.top_k, asked.top_p, asked.temperature) == (0, 1e-6, 0.0)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (m.ErrorKind.INVALID, INVALID),
        (m.ErrorKind.TOO_LONG, INVALID),
        (m.ErrorKind.DRAINING, grpc.StatusCode.UNAVAILABLE),
        (m.ErrorKind.QUEUE_TIMEOUT, grpc.StatusCode.UNAVAILABLE),
        (m.ErrorKind.INTERNAL, grpc.StatusCode.INTERNAL),
    ],
)
def test_the_engines_refusals_keep_kind_and_message(
    front: Front, inference: pb_grpc.InferenceStub, kind: m.ErrorKind, status: grpc.StatusCode
) -> None:
    front.engine.reject = m.RequestError(kind, "because")
    call = inference.Generate(pb.GenerateRequest(token_ids=ids(1)))
    assert failure(call) == (status, kind.value, "because")


def test_every_kind_of_error_has_a_status(front: Front, inference: pb_grpc.InferenceStub) -> None:
    for kind in m.ErrorKind:
        front.engine.reject = m.RequestError(kind, "x")
        status, _, _ = failure(inference.Generate(pb.GenerateRequest(token_ids=ids(1))))
        assert status is not grpc.StatusCode.UNKNOWN


def test_malformed_bytes_are_refused(front: Front, channel: grpc.Channel) -> None:
    streamed = channel.unary_stream("/tasuki.v1.Inference/Generate")(b"\xff\xff\xff\xff")
    status, kind, message = failure(streamed)
    assert (status, kind) == (INVALID, "invalid") and "GenerateRequest" in message
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/tasuki.v1.Session/Append")(b"\x0a\xff")
    assert caught.value.code() is INVALID
    assert not front.engine.of(m.Submit)


def test_a_checkpoint_without_a_tokenizer_takes_token_ids_only() -> None:
    with (
        running_front(TextCodec(320, 4096, None, None)) as front,
        grpc.insecure_channel(front.address) as channel,
    ):
        stub = pb_grpc.InferenceStub(channel)
        for request in (
            pb.GenerateRequest(text="x"),
            pb.GenerateRequest(messages=pb.Messages(items=[pb.Message(role="user")])),
        ):
            status, _, message = failure(stub.Generate(request))
            assert status is INVALID and "send token_ids" in message
        *chunks, last = list(stub.Generate(pb.GenerateRequest(token_ids=ids(1))))
        assert [item.chunk.text for item in chunks] == ["", "", ""] and last.HasField("finished")


def test_a_lost_engine_ends_what_is_in_flight(
    front: Front, inference: pb_grpc.InferenceStub, channel: grpc.Channel
) -> None:
    front.engine.hold = True
    call = inference.Generate(pb.GenerateRequest(token_ids=ids(1)))
    next(call)
    front.loop.call_soon_threadsafe(front.client.engine_lost, "the engine died")
    for failing in (call, inference.Generate(pb.GenerateRequest(token_ids=ids(1)))):
        assert failure(failing) == (grpc.StatusCode.INTERNAL, "internal", "the engine died")
    with pytest.raises(grpc.RpcError, match="the engine died"):
        pb_grpc.CacheAdminStub(channel).Stats(pb.StatsRequest())


def test_admin_tells_counts_and_drains_after_the_last_request(
    front: Front, channel: grpc.Channel, inference: pb_grpc.InferenceStub
) -> None:
    admin = pb_grpc.CacheAdminStub(channel)
    stats = admin.Stats(pb.StatsRequest())
    assert (stats.pages["total"], stats.slots["free"], stats.lost["new"]) == (9, 2, 5)
    assert stats.integrity == "ok"
    assert admin.Flush(pb.FlushRequest()).dropped == 4
    front.engine.hold = True
    call = inference.Generate(pb.GenerateRequest(request_id="r", token_ids=ids(1)))
    next(call)
    draining = admin.Drain.future(pb.DrainRequest())
    front.engine.wait_for(m.Drain)
    assert not draining.done()
    inference.Abort(pb.AbortRequest(request_id="r"))
    draining.result(timeout=HANG_SECONDS)


def test_a_drain_that_is_taken_back_tells_who_waits_for_it(
    front: Front, channel: grpc.Channel, inference: pb_grpc.InferenceStub
) -> None:
    admin = pb_grpc.CacheAdminStub(channel)
    front.engine.hold = True
    call = inference.Generate(pb.GenerateRequest(request_id="r", token_ids=ids(1)))
    next(call)
    draining = admin.Drain.future(pb.DrainRequest())
    front.engine.wait_for(m.Drain)
    admin.Undrain(pb.UndrainRequest(), timeout=HANG_SECONDS)
    with pytest.raises(grpc.RpcError, match="drain it once more") as refused:
        draining.result(timeout=HANG_SECONDS)
    assert refused.value.code() is grpc.StatusCode.ABORTED
    call.cancel()
    # A node that is being stopped stays so.
    asyncio.run_coroutine_threadsafe(front.client.retire(), front.loop).result(5)
    with pytest.raises(grpc.RpcError, match="being stopped") as refused:
        admin.Undrain(pb.UndrainRequest(), timeout=HANG_SECONDS)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert len(front.engine.of(m.Undrain)) == 1


def test_health_names_every_service_and_ends_with_the_server(
    front: Front, channel: grpc.Channel
) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    serving = health_pb2.HealthCheckResponse
    for name in ("", "tasuki.v1.Inference", "tasuki.v1.Session", "tasuki.v1.CacheAdmin"):
        assert health.Check(health_pb2.HealthCheckRequest(service=name)).status == serving.SERVING
    watch = health.Watch(health_pb2.HealthCheckRequest())
    assert next(watch).status == serving.SERVING
    asyncio.run_coroutine_threadsafe(front.server.refuse_traffic(), front.loop).result(5)
    assert next(watch).status == serving.NOT_SERVING
    watch.cancel()


def test_turns_send_only_what_is_new(
    front: Front, sessions: pb_grpc.SessionStub, codec: TextCodec
) -> None:
    tokenizer, template = codec.require_tokenizer(), codec.require_template()
    front.engine.answer = lambda submit: [*tokenizer.encode("good"), 2]
    session = sessions.Open(pb.SessionOpenRequest(cache_salt=b"s")).session_id

    def append(*items: pb.Message) -> pb.SessionAppendResponse:
        return sessions.Append(
            pb.SessionAppendRequest(session_id=session, messages=pb.Messages(items=items))
        )

    append(pb.Message(role="system", content="be kind"), pb.Message(role="user", content="hi"))
    list(sessions.Generate(pb.SessionGenerateRequest(session_id=session)))
    added = append(pb.Message(role="user", content="go on"))
    list(sessions.Generate(pb.SessionGenerateRequest(session_id=session)))
    first, second = front.engine.of(m.Submit)
    assert tokenizer.decode(first.prompt) == "system\nbe kind\nuser\nhi\nassistant\n"
    assert tokenizer.decode(second.prompt).endswith("hi\nassistant\ngood\nuser\ngo on\nassistant\n")
    assert second.prompt[: len(first.prompt)].tolist() == first.prompt.tolist()
    assert added.appended_tokens < len(first.prompt)
    assert len(second.prompt) == added.total_tokens + len(template.answer_opening())
    assert list(second.prompt).count(2) == 4, "the answer's own end token was repeated"
    assert (first.cursor, second.cursor, second.salt) == (1, 1, b"s")
    assert second.marks[: len(first.marks)] == first.marks and len(second.marks) == 3


def test_an_answer_cut_by_length_is_closed_before_the_next_message(
    front: Front, sessions: pb_grpc.SessionStub, codec: TextCodec
) -> None:
    tokenizer = codec.require_tokenizer()
    front.engine.answer = lambda submit: tokenizer.encode("goo")
    session = sessions.Open(pb.SessionOpenRequest()).session_id
    for text in ("hi", "on"):
        items = [pb.Message(role="user", content=text)]
        sessions.Append(
            pb.SessionAppendRequest(session_id=session, messages=pb.Messages(items=items))
        )
        list(sessions.Generate(pb.SessionGenerateRequest(session_id=session)))
    second = front.engine.of(m.Submit)[1].prompt
    assert tokenizer.decode(second) == "user\nhi\nassistant\ngoo\nuser\non\nassistant\n"
    assert list(second).count(2) == 3


def test_a_session_outlives_any_number_of_turns_that_end_without_an_answer(
    front: Front, sessions: pb_grpc.SessionStub
) -> None:
    session = sessions.Open(pb.SessionOpenRequest()).session_id
    items = pb.Messages(items=[pb.Message(role="user", content="hi")])
    sessions.Append(pb.SessionAppendRequest(session_id=session, messages=items))
    ask = pb.SessionGenerateRequest(session_id=session)
    front.engine.reject = m.RequestError(m.ErrorKind.INTERNAL, "not this turn")
    for _ in range(60):
        assert failure(sessions.Generate(ask))[2] == "not this turn"
    front.engine.reject = None
    prompts = {tuple(submit.prompt.tolist()) for submit in front.engine.of(m.Submit)}
    assert len(prompts) == 1 and len(front.engine.of(m.Submit)) == 60
    list(sessions.Generate(ask))
    assert tuple(front.engine.of(m.Submit)[-1].prompt.tolist()) in prompts


def test_a_turn_that_did_not_finish_leaves_the_log_as_it_was(
    front: Front, sessions: pb_grpc.SessionStub
) -> None:
    front.engine.hold = True
    session = sessions.Open(pb.SessionOpenRequest()).session_id
    sessions.Append(pb.SessionAppendRequest(session_id=session, token_ids=ids(1, 2, 3)))
    call = sessions.Generate(pb.SessionGenerateRequest(session_id=session, request_id="r"))
    next(call)
    status, kind, _ = failure(
        sessions.Generate(pb.SessionGenerateRequest(session_id=session, request_id="s"))
    )
    assert (status, kind) == (grpc.StatusCode.FAILED_PRECONDITION, "session_busy")
    call.cancel()
    front.engine.wait_for(m.Abort)
    front.engine.hold = False
    deadline = time.monotonic() + 5
    while True:
        try:
            reply = sessions.Append(pb.SessionAppendRequest(session_id=session, token_ids=ids(4)))
            break
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert time.monotonic() < deadline, "the cancelled turn never let go of its session"
    assert reply.total_tokens == 4
    list(sessions.Generate(pb.SessionGenerateRequest(session_id=session)))
    assert front.engine.of(m.Submit)[-1].prompt.tolist() == [1, 2, 3, 4]


def test_forks_go_separate_ways(front: Front, sessions: pb_grpc.SessionStub) -> None:
    origin = sessions.Open(pb.SessionOpenRequest(cache_salt=b"s")).session_id
    sessions.Append(pb.SessionAppendRequest(session_id=origin, token_ids=ids(1, 2)))
    fork = sessions.Fork(pb.SessionForkRequest(session_id=origin)).session_id
    assert front.engine.of(m.ForkCursor)[0].cursor == 1
    for session, token in ((origin, 3), (fork, 4)):
        sessions.Append(pb.SessionAppendRequest(session_id=session, token_ids=ids(token)))
        list(sessions.Generate(pb.SessionGenerateRequest(session_id=session)))
    submits = front.engine.of(m.Submit)
    assert [submit.prompt.tolist() for submit in submits] == [[1, 2, 3], [1, 2, 4]]
    assert [(submit.cursor, submit.salt) for submit in submits] == [(1, b"s"), (2, b"s")]


def test_closing_a_session_closes_its_cursor_once(
    front: Front, sessions: pb_grpc.SessionStub
) -> None:
    session = sessions.Open(pb.SessionOpenRequest()).session_id
    sessions.Close(pb.SessionCloseRequest(session_id=session))
    assert [message.cursor for message in front.engine.wait_for(m.CloseCursor)] == [1]
    calls = (
        lambda: sessions.Close(pb.SessionCloseRequest(session_id=session)),
        lambda: sessions.Append(pb.SessionAppendRequest(session_id=session, token_ids=ids(1))),
        lambda: sessions.Fork(pb.SessionForkRequest(session_id=session)),
        lambda: list(sessions.Generate(pb.SessionGenerateRequest(session_id=session))),
    )
    for call in calls:
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert repr(session) in caught.value.details()


def test_a_session_closed_during_its_turn_closes_the_cursor_afterwards(
    front: Front, sessions: pb_grpc.SessionStub, inference: pb_grpc.InferenceStub
) -> None:
    front.engine.hold = True
    session = sessions.Open(pb.SessionOpenRequest()).session_id
    sessions.Append(pb.SessionAppendRequest(session_id=session, token_ids=ids(1)))
    call = sessions.Generate(pb.SessionGenerateRequest(session_id=session, request_id="r"))
    next(call)
    sessions.Close(pb.SessionCloseRequest(session_id=session))
    assert not front.engine.of(m.CloseCursor)
    inference.Abort(pb.AbortRequest(request_id="r"))
    list(call)
    assert front.engine.wait_for(m.CloseCursor)[0].cursor == 1


def test_a_turn_taken_back_takes_its_cursor_along(
    front: Front, sessions: pb_grpc.SessionStub, inference: pb_grpc.InferenceStub
) -> None:
    """The engine may have published the lost answer under it, and a cursor vouches unread."""
    front.engine.hold = True
    session = sessions.Open(pb.SessionOpenRequest()).session_id
    sessions.Append(pb.SessionAppendRequest(session_id=session, token_ids=ids(1)))
    call = sessions.Generate(pb.SessionGenerateRequest(session_id=session, request_id="r"))
    next(call)
    inference.Abort(pb.AbortRequest(request_id="r"))
    list(call)
    assert front.engine.wait_for(m.CloseCursor)[0].cursor == 1
    front.engine.hold = False
    list(sessions.Generate(pb.SessionGenerateRequest(session_id=session)))
    list(sessions.Generate(pb.SessionGenerateRequest(session_id=session)))
    assert [submit.cursor for submit in front.engine.of(m.Submit)] == [1, 2, 2]


def test_sessions_are_limited(codec: TextCodec) -> None:
    with (
        running_front(codec, ServerConfig(max_sessions=1)) as front,
        grpc.insecure_channel(front.address) as channel,
    ):
        sessions = pb_grpc.SessionStub(channel)
        first = sessions.Open(pb.SessionOpenRequest()).session_id
        for refused in (
            lambda: sessions.Open(pb.SessionOpenRequest()),
            lambda: sessions.Fork(pb.SessionForkRequest(session_id=first)),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                refused()
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        sessions.Close(pb.SessionCloseRequest(session_id=first))
        sessions.Open(pb.SessionOpenRequest())


def test_idle_sessions_give_way(codec: TextCodec) -> None:
    config = ServerConfig(max_sessions=1, session_idle_seconds=0.0)
    with (
        running_front(codec, config) as front,
        grpc.insecure_channel(front.address) as channel,
    ):
        sessions = pb_grpc.SessionStub(channel)
        sessions.Open(pb.SessionOpenRequest())
        sessions.Open(pb.SessionOpenRequest())
        assert front.engine.wait_for(m.CloseCursor)[0].cursor == 1


def test_empty_and_oversized_sessions_are_refused(
    front: Front, sessions: pb_grpc.SessionStub
) -> None:
    session = sessions.Open(pb.SessionOpenRequest()).session_id
    status, _, message = failure(sessions.Generate(pb.SessionGenerateRequest(session_id=session)))
    assert status is INVALID and "append" in message
    for tokens, part in (((), "input is empty"), ((1,) * 5000, "context is 4096")):
        with pytest.raises(grpc.RpcError, match=part):
            sessions.Append(pb.SessionAppendRequest(session_id=session, token_ids=ids(*tokens)))
