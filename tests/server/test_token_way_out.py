"""Tests of tokens on their way out. Tokens that wait together leave together, as the same bytes in
the same order. A client that does not read keeps no other waiting."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tasuki.engine import messages as m
from tasuki.server.errors import SlowReader
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.unread_answer import AnswerPart, UnreadAnswer
from tests.harness.grpc_fixtures import Front
from tests.harness.http_calls import JSON
from tests.harness.http_fixtures import HttpFront, running_http
from tests.harness.waiting import HANG_SECONDS

A = m.RequestId("a")
END = m.Finished(A, m.FinishReason.LENGTH, m.Usage(1, 9, None, None, "local", False, 0.1, 0.2))
TEXT = 'a "quoted\\" word,\t\x01\x7f\r\n then é, 漢, 😀 and \u2028.'


def token(index: int, token: int = 70, request: str = "a") -> m.TokenOut:
    return m.TokenOut(m.RequestId(request), token, -0.5, 1.5, index)


@contextmanager
def standing_still(front: Front) -> Iterator[None]:
    """Stop the front's loop while the block runs."""
    stands, go_on = threading.Event(), threading.Event()

    def stand() -> None:
        stands.set()
        assert go_on.wait(HANG_SECONDS)

    front.loop.call_soon_threadsafe(stand)
    assert stands.wait(HANG_SECONDS)
    try:
        yield
    finally:
        go_on.set()


class Streamed:
    """A connection with a streamed completion, read write by write."""

    def __init__(self, http: HttpFront, request: str, receive_bytes: int | None = None) -> None:
        self._connection = socket.socket()
        if receive_bytes is not None:
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._connection.settimeout(HANG_SECONDS)
        self._connection.connect(("127.0.0.1", http.server.port))
        body = json.dumps({"prompt": [5], "stream": True, "max_tokens": 900}).encode()
        head = {**JSON, "Host": "localhost", "x-request-id": request, "Content-Length": len(body)}
        lines = ["POST /v1/completions HTTP/1.1", *(f"{name}: {of}" for name, of in head.items())]
        self._connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        self._file = self._connection.makefile("rb")

    def head(self) -> None:
        while self._file.readline() != b"\r\n":
            pass

    def write(self) -> list[bytes]:
        """Return the events of the next write, one chunk of HTTP's encoding; empty at the end."""
        size = int(self._file.readline(), 16)
        chunk = self._file.read(size)
        assert self._file.readline() == b"\r\n"
        events = chunk.split(b"\n\n")
        assert events.pop() == b""
        return events

    def close(self) -> None:
        self._file.close()
        self._connection.close()


def texts(events: Sequence[bytes]) -> str:
    bodies = [json.loads(event.removeprefix(b"data: ")) for event in events]
    return "".join(body["choices"][0]["text"] for body in bodies)


def test_tokens_that_wait_for_one_stream_leave_in_one_write(http: HttpFront) -> None:
    http.engine.hold = True
    http.engine.answer = lambda submit: [70]
    stream = Streamed(http, "a")
    stream.head()
    first = texts(stream.write())
    with standing_still(http.front):
        for index, letter in enumerate((71, 72, 73, 74), 1):
            http.engine.deliver(token(index, letter))
    events = stream.write()
    assert len(events) == 4 and first + texts(events) == "defgh"
    # A single token is not held back for others.
    http.engine.deliver(token(5, 75))
    assert texts(stream.write()) == "i"
    stream.close()
    assert http.engine.wait_for(m.Abort)[0].request_id == "a"


def test_a_client_that_reads_no_chunks_gets_the_events_alone(http: HttpFront) -> None:
    with http.dial() as connection:
        body = b'{"prompt": [5], "stream": true}'
        head = "POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json"
        connection.sendall(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        told = b""
        while piece := connection.recv(1 << 16):
            told += piece
    *events, done, end = told.partition(b"\r\n\r\n")[2].split(b"\n\n")
    assert texts(events) == "%&'" and (done, end) == (b"data: [DONE]", b"")


def test_tokens_that_wait_for_one_call_leave_in_one_message(front: Front) -> None:
    front.engine.hold = True
    front.engine.answer = lambda submit: [70]
    call = front.calls.generate(1, request_id="a")
    assert list(next(call).chunk.token_ids) == [70]
    with standing_still(front):
        for index, letter in enumerate((71, 72, 73), 1):
            front.engine.deliver(token(index, letter))
    chunk = next(call).chunk
    assert (list(chunk.token_ids), chunk.text) == ([71, 72, 73], "efg")
    assert (list(chunk.logprobs), list(chunk.margins)) == ([-0.5] * 3, [1.5] * 3)
    front.calls.abort("a")
    list(call)


def spelled(events: Sequence[Any]) -> bytes:
    """Return the body of a stream of these events, each encoded whole and separately."""
    bodies = [json.dumps(event, ensure_ascii=False, separators=(",", ":")) for event in events]
    return "".join(f"data: {body}\n\n" for body in [*bodies, "[DONE]"]).encode()


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"stream_options": {"include_usage": True}},
        {"stop": ["漢"]},
        {"logprobs": 1, "temperature": 0},
    ],
    ids=["plain", "usage", "stop", "logprobs"],
)
@pytest.mark.parametrize("kind", ["chat", "text"])
def test_events_are_the_same_bytes_whether_they_leave_together_or_not(
    http: HttpFront, codec: TextCodec, kind: str, fields: dict[str, Any], together: bool
) -> None:
    """Compare every event with an encoder's output for the whole event, with fields in the known
    order."""
    http.engine.answer = lambda submit: [*codec.require_tokenizer().encode(TEXT), 2]
    if together:
        waiting: list[m.Outbox] = []

        def deliver_at_the_end(message: m.Outbox) -> None:
            waiting.append(message)
            if isinstance(message, m.Finished):
                http.front.client.deliver(waiting)

        http.engine.deliver = deliver_at_the_end
    if kind == "chat":
        if "logprobs" in fields:
            fields = {**fields, "logprobs": True, "top_logprobs": 1}
        reply = http.chat({"x-request-id": 'a-"name"'}, stream=True, max_tokens=900, **fields)
    else:
        reply = http.complete({"x-request-id": 'a-"name"'}, stream=True, max_tokens=900, **fields)
    assert reply.body == spelled(reply.events)
    choices = [choice for event in reply.events for choice in event["choices"]]
    said = [
        choice["delta"].get("content", "") if kind == "chat" else choice["text"]
        for choice in choices
    ]
    assert "".join(said) == (TEXT.partition("漢")[0] if "stop" in fields else TEXT)
    names = ["id", "object", "created", "model", "choices"]
    if "stream_options" in fields:
        names.append("usage")
        told = [event["usage"] for event in reply.events]
        assert told[:-1] == [None] * len(choices) and told[-1]["prompt_tokens"] > 0
    assert all(list(event) == names for event in reply.events)


def test_a_slow_reader_delays_no_other_and_is_cut_off(codec: TextCodec) -> None:
    with running_http(codec, queue_limit=64) as http:
        http.engine.hold = True
        http.engine.answer = lambda submit: [70]
        slow, quick = Streamed(http, "slow", receive_bytes=4096), Streamed(http, "quick")
        for stream in (slow, quick):
            stream.head()
            assert texts(stream.write()) == "d"
        steps = 0
        # Send until no buffer takes more bytes for the client that does not read.
        while not http.engine.of(m.Abort):
            steps += 1
            assert steps < 100_000
            step = [token(steps, 71, request) for request in ("slow", "quick")]
            http.front.client.deliver(step)
            assert texts(quick.write()) == "e"
        assert http.engine.of(m.Abort)[0].request_id == "slow"
        http.front.client.deliver([token(steps, 72, "quick")])
        assert texts(quick.write()) == "f"
        read = b""
        while b"slow_reader" not in read:
            read = b"".join(slow.write())
        for stream in (slow, quick):
            stream.close()


class Reading:
    """An UnreadAnswer with a reader and a sink that record all they take."""

    def __init__(self, limit: int = 4096) -> None:
        self.read: list[AnswerPart] = []
        self.fed: list[list[int]] = []
        self.flows = True
        self.unread = UnreadAnswer(limit, self.take)

    def take(self, tokens: Sequence[m.TokenOut]) -> bool:
        if self.flows:
            self.fed.append([token.index for token in tokens])
        return self.flows

    async def follow(self) -> None:
        while not isinstance(part := await self.unread.read(), m.Finished):
            self.read.append([token.index for token in part])  # type: ignore[misc]

    def put(self, *indices: int) -> None:
        for index in indices:
            assert self.unread.put(token(index))


async def turn() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def test_a_sink_takes_what_waits_without_waking_the_reader() -> None:
    reading = Reading()
    follower = asyncio.create_task(reading.follow())
    await turn()
    reading.put(0, 1, 2)
    await turn()
    reading.put(3)
    await turn()
    assert reading.fed == [[0, 1, 2], [3]] and not reading.read
    reading.put(4)
    reading.unread.end(END)
    await follower
    # The end wakes the reader; it then takes the waiting tokens.
    assert reading.fed[2:] == [] and reading.read == [[4]]


async def test_what_the_sink_refuses_is_read_before_it_is_asked_again() -> None:
    reading = Reading()
    follower = asyncio.create_task(reading.follow())
    await turn()
    reading.flows = False
    reading.put(*range(70))
    await turn()
    assert reading.read == [[*range(64)], [*range(64, 70)]] and not reading.fed
    reading.flows = True
    reading.put(*range(70, 140))
    await turn()
    assert reading.fed == [[*range(70, 134)]] and reading.read[2:] == [[*range(134, 140)]]
    reading.unread.end(END)
    await follower


async def test_tokens_that_come_before_they_are_read_go_to_the_reader() -> None:
    reading = Reading()
    reading.put(0, 1)
    await turn()
    assert not reading.fed
    follower = asyncio.create_task(reading.follow())
    await turn()
    reading.put(2)
    await turn()
    assert (reading.read, reading.fed) == ([[0, 1]], [[2]])
    reading.unread.end(END)
    await follower


def test_one_callback_feeds_all_answers_of_a_turn(
    http: HttpFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use one callback for all streams. A callback per stream and step would cost as much as
    writing the stream."""
    http.engine.hold = True
    http.engine.answer = lambda submit: [70]
    names = [f"s{number}" for number in range(12)]
    streams = [Streamed(http, name) for name in names]
    for stream in streams:
        stream.head()
        assert texts(stream.write()) == "d"
    scheduled: list[object] = []
    call_soon = http.front.loop.call_soon

    def counted(callback: Any, *args: Any, **kwargs: Any) -> Any:
        scheduled.append(callback)
        return call_soon(callback, *args, **kwargs)

    monkeypatch.setattr(http.front.loop, "call_soon", counted)
    http.front.client.deliver([token(1, 71, name) for name in names])
    for stream in streams:
        assert texts(stream.write()) == "e"
    fed = [callback for callback in scheduled if "_feed" in repr(callback)]
    assert len(fed) == 1
    monkeypatch.undo()
    for stream in streams:
        stream.close()


async def test_what_a_sink_raises_the_reader_gets() -> None:
    def broken(tokens: Sequence[m.TokenOut]) -> bool:
        raise OSError("no space left")

    unread = UnreadAnswer(8, broken)
    reader = asyncio.create_task(unread.read())
    await turn()
    assert unread.put(token(0))
    with pytest.raises(OSError, match="no space left"):
        await reader
    assert unread.put(token(1)), "it is dropped"
    with pytest.raises(OSError, match="no space left"):
        await unread.read()


async def test_one_token_too_many_cuts_the_reader_off_behind_the_others() -> None:
    unread = UnreadAnswer(3)
    assert [unread.put(token(index)) for index in range(5)] == [True] * 3 + [False, True]
    unread.end(END)
    part = await unread.read()
    assert not isinstance(part, m.Finished) and [token.index for token in part] == [0, 1, 2]
    with pytest.raises(SlowReader, match="3 tokens wait"):
        await unread.read()
