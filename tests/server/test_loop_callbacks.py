"""Tests of requests on the event loop: none holds it. The longest callback is measured in processor
time, under the worst bodies.

Heartbeats, streams and probes share that loop.
"""

import asyncio
import gc
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import grpc
import pytest

from tasuki.proto import inference_pb2 as pb
from tasuki.server.text.rendering.compiled_template import CompiledTemplate
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.text.tokenizer import Tokenizer
from tests.harness.daemons import asked, random_prompt
from tests.harness.grpc_calls import GrpcCalls
from tests.harness.grpc_fixtures import running_front
from tests.harness.http_calls import JSON, connect
from tests.harness.http_fixtures import HttpFront, running_http
from tests.harness.refusals import refusal
from tests.harness.response_sockets import frame, upgraded
from tests.harness.running_nodes import CHUNKS, HTTP, node_pair


# Processor time of an event loop's single callbacks.
@dataclass
class LoopWatch:
    """A watch of all callbacks of all loops while `watching`. longest: seconds and text of the
    longest callback."""

    longest: tuple[float, str] = (0.0, "")
    callbacks: int = 0

    def forget(self) -> None:
        self.longest, self.callbacks = (0.0, ""), 0

    def ran(self, handle: asyncio.Handle, seconds: float) -> None:
        self.callbacks += 1
        if seconds > self.longest[0]:
            self.longest = (seconds, repr(handle)[:300])


@contextmanager
def watched_loops(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopWatch]:
    """Yield a watch of all loops. It counts this thread's processor time alone, without other load
    on the machine."""
    watch = LoopWatch()
    run = asyncio.events.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        begun = time.thread_time()
        try:
            run(handle)
        finally:
            watch.ran(handle, time.thread_time() - begun)

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.events.Handle, "_run", timed)
        yield watch


LONGEST_SECONDS = 0.020
MIB = 2**20
# A hypervisor charges its own time to the running thread. The best of a few tries is the length of
# a callback.
TRIES = 6


@pytest.fixture(scope="module")
def codec(codec: TextCodec) -> TextCodec:
    """Return a codec with a context so long that length alone refuses none of these bodies."""
    return replace(codec, max_tokens=2**20)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopWatch]:
    # A front need not scan objects loaded by this test process.
    gc.collect()
    gc.freeze()
    with watched_loops(monkeypatch) as watching:
        yield watching
    gc.unfreeze()


@pytest.fixture
def front(codec: TextCodec, watch: LoopWatch) -> Iterator[HttpFront]:
    with running_http(codec) as running:
        running.ask("GET", "/health")
        yield running


def chat(*contents: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content} for content in contents]}


def body(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


BODIES: dict[str, tuple[str, Callable[[], bytes], tuple[int, ...]]] = {
    "2,000 messages": ("/tokenize", lambda: body(chat(*["hi"] * 2000)), (200,)),
    "too many messages": ("/tokenize", lambda: body(chat(*["hi"] * 100_000)), (400,)),
    "numbers of marks": (
        "/tokenize",
        lambda: body(chat("".join(f"\ue000{n}:" for n in range(64_000)))),
        (200, 400),
    ),
    "8 MB of text": ("/v1/completions", lambda: body({"prompt": "so it was " * 800_000}), (400,)),
    "30 MB of text": ("/tokenize", lambda: body({"prompt": "it was " * 4_400_000}), (400,)),
    "8 MB in a chat": (
        "/v1/chat/completions",
        lambda: body(chat("so it was " * 800_000)),
        (400,),
    ),
    "30 MB of lists": (
        "/v1/completions",
        lambda: b'{"prompt": [5], "x": [' + b"[]," * (10 * MIB) + b"[]]}",
        (400,),
    ),
    "30 MB of token ids": (
        "/v1/completions",
        lambda: b'{"prompt": [' + b"5," * (15 * MIB) + b"5]}",
        (400,),
    ),
    "a million token ids": (
        "/v1/completions",
        lambda: b'{"prompt": [' + b"5," * 1_000_000 + b"5]}",
        (200,),
    ),
    "4 MB of surrogates": (
        "/tokenize",
        lambda: b'{"prompt": "' + b"\\ud83d" * 700_000 + b'"}',
        (400,),
    ),
}


def assert_short(watch: LoopWatch, act: Callable[[], None]) -> None:
    """Check for callbacks of acceptable length on every loop while `act` runs."""
    for _ in range(TRIES):
        watch.forget()
        act()
        assert watch.callbacks > 0
        if watch.longest[0] <= LONGEST_SECONDS:
            return
    raise AssertionError(watch.longest)


FRAMES = {
    "a text of 2 MiB": frame(1, b"x" * 2**21),
    "pings": frame(9) * 60_000,
    "pongs": frame(10) * 60_000,
    "empty texts": frame(1) * 10_000,
}


@pytest.mark.parametrize("name", FRAMES)
def test_no_socket_s_frames_hold_the_loop(front: HttpFront, watch: LoopWatch, name: str) -> None:
    def act() -> None:
        with closing(upgraded(front.dial())) as raw:
            reader = threading.Thread(target=read_to_end, args=(raw,))
            reader.start()
            # The closing frame is answered once all frames before it are processed.
            raw.sendall(FRAMES[name] + frame(8))
            reader.join()

    assert_short(watch, act)


def read_to_end(raw: socket.socket) -> None:
    try:
        while raw.recv(2**16):
            pass
    except OSError:
        pass


@pytest.mark.parametrize("name", BODIES)
def test_no_body_holds_the_loop(front: HttpFront, watch: LoopWatch, name: str) -> None:
    path, build, statuses = BODIES[name]
    sent = build()

    def post() -> None:
        reply = front.ask("POST", path, sent)
        assert reply.status in statuses, reply.body[:200]

    assert_short(watch, post)


@pytest.mark.parametrize("kind", ["text", "messages", "append"])
def test_no_message_holds_the_loop(codec: TextCodec, watch: LoopWatch, kind: str) -> None:
    options = [("grpc.max_send_message_length", -1)]
    with (
        running_front(codec) as running,
        grpc.insecure_channel(running.address, options) as channel,
    ):
        calls = GrpcCalls(channel)
        text = "it was " * 600_000
        messages = pb.Messages(items=[pb.Message(role="user", content="hi")] * 2000)
        session = calls.open()

        def send() -> None:
            if kind == "messages":
                assert list(calls.generate(messages=messages))
            elif kind == "append":
                assert refusal(calls.append, session, text=text).kind == "too_long"
            else:
                assert refusal(calls.generate, text=text).kind == "too_long"

        assert_short(watch, send)


def test_no_chat_is_rendered_or_encoded_on_a_loop(
    codec: TextCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[str] = set()

    def watched(owner: type, name: str) -> None:
        work = getattr(owner, name)

        def noted(*given: Any) -> Any:
            threads.add(threading.current_thread().name)
            return work(*given)

        monkeypatch.setattr(owner, name, noted)

    with (
        running_http(codec) as http,
        grpc.insecure_channel(http.front.address) as channel,
    ):
        for owner, name in (
            (CompiledTemplate, "_run"),
            (Tokenizer, "encode"),
            (Tokenizer, "encode_all"),
        ):
            watched(owner, name)
        calls = GrpcCalls(channel)
        assert http.chat().status == 200
        assert http.post("/tokenize", chat("so it was")).status == 200
        assert list(calls.generate(messages=pb.Messages(items=[pb.Message(role="user")])))
        session = calls.open()
        for content in ("what was it?", "and then?"):
            calls.say(session, ("user", content))
            assert list(calls.turn(session))
        calls.append(session, answer=pb.TokenIds(ids=[5]))
    assert threads and all(name.startswith("tasuki-front") for name in threads), threads


def test_the_watch_sees_a_callback_that_is_too_long(front: HttpFront, watch: LoopWatch) -> None:
    def long() -> None:
        sum(range(3_000_000))

    watch.forget()
    front.front.loop.call_soon_threadsafe(long)
    front.ask("GET", "/health")
    assert watch.longest[0] > LONGEST_SECONDS and "long" in watch.longest[1]


def test_no_hand_over_is_lost_while_a_long_conversation_is_read() -> None:
    """Keep the hand-over, since heartbeats use the decode node's loop. A rendering for every
    message once held the loop for half a minute."""
    with (
        node_pair(prefill=CHUNKS, decode=HTTP) as (_, decode),
        closing(connect(decode.http_address)) as worst,
    ):
        asked(decode, random_prompt(70, 1), b"a hand-over to begin with", 2).result()
        answer = asked(decode, random_prompt(3000, 2), b"the one under way", 2)
        worst.request("POST", "/tokenize", body(chat(*["hi"] * 4000)), JSON)
        assert worst.getresponse().status == 200
        assert answer.result().usage.local_fallback is False
        decode.assert_at_rest()
