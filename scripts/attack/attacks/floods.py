"""Attacks with too many allowed requests: sessions, abandoned streams, streams never read."""

import socket
import time
from functools import partial

import grpc

from scripts.attack.attack import Attempt
from scripts.attack.grpc_call import ask, bearer, judge, service
from scripts.attack.http_call import raw
from scripts.attack.world import ANN, BOB, MOST_SESSIONS, OWNER
from tasuki.proto import inference_pb2 as pb
from tasuki.proto import inference_pb2_grpc as pb_grpc
from tests.harness.daemons import random_prompt

_STORM = 100
_OF_SESSIONS = service(pb, "Session")


def session_flood(attempt: Attempt) -> None:
    """Try to open more sessions than one API key may have. Another key must still get a session."""
    opened, close = _OF_SESSIONS["Open"], _OF_SESSIONS["Close"]
    with attempt.world.channel(attempt.world.decode) as channel:
        for _ in attempt.rounds():
            names = []
            for _ in range(MOST_SESSIONS + 20):
                code, answers = ask(channel, opened, [opened.request()], ANN, attempt.tally)
                names += [answer.session_id for answer in answers]
            code, answers = ask(channel, opened, [opened.request()], BOB, attempt.tally)
            if code is not grpc.StatusCode.OK:
                attempt.tally.finding(f"{code.name} of Open: another key has all sessions")
            for key, held in ((ANN, names), (BOB, [answer.session_id for answer in answers])):
                for name in held:
                    ask(channel, close, [close.request(session_id=name)], key, attempt.tally)


def cancel_storm(attempt: Attempt) -> None:
    """Open many streams concurrently, and disconnect from most of them at random moments."""
    rng = attempt.rng

    def ask_and_leave(number: int, leave_after: float | None, channel: grpc.Channel) -> None:
        request = pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=random_prompt(20 + number % 7 * 40, number)),
            sampling=pb.Sampling(max_new_tokens=20, ignore_eos=True),
            cache_salt=str(number).encode(),
        )
        key = (ANN, BOB)[number % 2]
        stream = pb_grpc.InferenceStub(channel).Generate(
            request, timeout=leave_after or 120.0, metadata=bearer(key)
        )
        try:
            received = sum(len(message.chunk.token_ids) for message in stream)
        except grpc.RpcError as error:
            code = error.code()
            if leave_after is not None and code is grpc.StatusCode.DEADLINE_EXCEEDED:
                attempt.tally.note("left")
            else:
                judge(code, error.details() or "", "a stream of a storm", attempt.tally)
            return
        attempt.tally.note("whole" if received == 20 else "short")

    with attempt.world.channel(attempt.world.decode) as channel:
        number = 0
        for _ in attempt.rounds():
            calls = []
            for _ in range(_STORM):
                number += 1
                leave = rng.uniform(0.001, 0.5) if rng.random() < 0.8 else None
                calls.append(partial(ask_and_leave, number, leave, channel))
            attempt.at_once(_STORM, calls)


def unread_streams(attempt: Attempt) -> None:
    """Open monitoring streams of the node without ever reading from them, while the node serves
    others."""
    world = attempt.world
    left = max(1.0, attempt.until - time.monotonic())
    get = (
        "GET /debug/stream?seconds=3600&points=600 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {OWNER}\r\n\r\n"
    ).encode()

    def hold(address: str) -> None:
        try:
            received = _unread(address, get, left)
        except OSError:
            received = b""
        attempt.tally.note(received[9:12].decode(errors="replace") or "refused")

    def watch(channel: grpc.Channel) -> None:
        stub = pb_grpc.CacheAdminStub(channel)
        request = pb.WatchEventsRequest(stream=pb.WatchEventsRequest.STREAM_ALL)
        stream = stub.WatchEvents(request, timeout=left, metadata=bearer(OWNER))
        time.sleep(left)
        stream.cancel()
        attempt.tally.note("watched")

    with world.channel(world.decode) as channel:
        calls = [partial(hold, node.http_address) for node in world.nodes for _ in range(150)]
        calls += [partial(watch, channel)] * 30
        attempt.at_once(len(calls), calls)


def _unread(address: str, sent: bytes, seconds: float) -> bytes:
    """Send a request, and return the first bytes of its answer after `seconds`. The rest stays
    unread in the socket."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=seconds) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(sent)
        received = connection.recv(12)
        time.sleep(seconds)
        return received


def host_tricks(attempt: Attempt) -> None:
    """Send requests with a Host header naming another host, like a web page in a browser."""
    hosts = ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "169.254.1.1", "[::2]")
    paths = ("/v1/models", "/metrics", "/debug/overview")
    for _ in attempt.rounds():
        for node in attempt.world.nodes:
            for host in hosts:
                for path in paths:
                    status = _of_host(node.http_address, host, path)
                    attempt.tally.note(status)
                    if status.startswith("2"):
                        attempt.tally.finding(f"{status} of {path} for the host {host}")


def _of_host(address: str, host: str, path: str) -> str:
    head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {OWNER}\r\n"
    received = raw(address, f"{head}Connection: close\r\n\r\n".encode(), 20.0)
    return received[9:12].decode(errors="replace") or "closed"
