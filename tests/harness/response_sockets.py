"""A client of the Responses API over a WebSocket, giving messages and closes as values.

Over plain HTTP: the events of a stream, and the response made from them.
"""

import asyncio
import json
import socket as sockets
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp

from tests.harness.grpc_fixtures import loop_on_a_thread
from tests.harness.http_calls import Reply, named_events
from tests.harness.waiting import HANG_SECONDS

Result = TypeVar("Result")
Event = dict[str, Any]

LAST = ("response.completed", "response.incomplete", "response.failed", "error")


class Refused(Exception):
    """The server rejected the upgrade to a WebSocket."""

    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.status = status


@dataclass
class ResponseClient:
    """A client of one WebSocket. socket: its messages are read by one thread."""

    loop: asyncio.AbstractEventLoop
    socket: aiohttp.ClientWebSocketResponse

    def send(self, text: str | bytes) -> None:
        """Send a message. text: a str is sent as a text message, bytes as a binary message."""
        sending = self.socket.send_bytes if isinstance(text, bytes) else self.socket.send_str
        self._run(sending(text))  # type: ignore[arg-type]

    def create(self, **fields: Any) -> None:
        self.send(json.dumps({"type": "response.create", "input": "it was", **fields}))

    def event(self) -> Event:
        """Return the next event received."""
        message = self._run(self.socket.receive())
        assert message.type is aiohttp.WSMsgType.TEXT, message
        found: Event = json.loads(message.data)
        return found

    def events(self) -> list[Event]:
        """Return the events of one response, up to its last event."""
        found = [self.event()]
        while found[-1]["type"] not in LAST:
            found.append(self.event())
        return found

    def response(self, **fields: Any) -> Event:
        """Send a request and return its response."""
        self.create(**fields)
        events = self.events()
        assert events[-1]["type"] != "error", events[-1]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        found: Event = events[-1]["response"]
        return found

    def refusal(self, **fields: Any) -> tuple[int, str]:
        """Return the status and the code of an error event. It must be the only answer."""
        self.create(**fields)
        return self.error()

    def error(self) -> tuple[int, str]:
        event = self.event()
        assert event["type"] == "error", event
        return event["status"], event["error"]["code"]

    def closed(self) -> int:
        """Return the server's close code. All earlier messages must have been read."""
        message = self._run(self.socket.receive())
        assert message.type is aiohttp.WSMsgType.CLOSE, message
        code: int = message.data
        return code

    def cut(self) -> None:
        """Cut the TCP connection without closing the WebSocket."""
        connection = self.socket._response.connection
        assert connection is not None and connection.transport is not None
        self.loop.call_soon_threadsafe(connection.transport.abort)

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(HANG_SECONDS)


@contextmanager
def response_socket(
    address: str, headers: dict[str, str] | None = None
) -> Iterator[ResponseClient]:
    """Yield an open WebSocket client. address: HOST:PORT. Raises Refused."""
    with loop_on_a_thread() as loop:

        async def start() -> tuple[aiohttp.ClientSession, aiohttp.ClientWebSocketResponse]:
            session = aiohttp.ClientSession()
            try:
                url = f"http://{address}/v1/responses"
                # The tests limit the server's messages.
                return session, await session.ws_connect(url, headers=headers, max_msg_size=0)
            except aiohttp.WSServerHandshakeError as error:
                await session.close()
                raise Refused(error.status) from error

        def run(work: Coroutine[Any, Any, Result]) -> Result:
            return asyncio.run_coroutine_threadsafe(work, loop).result(HANG_SECONDS)

        session, socket = run(start())
        try:
            yield ResponseClient(loop, socket)
        finally:
            run(socket.close())
            run(session.close())


MASK = b"\1\2\3\4"


def frame(kind: int, content: bytes = b"") -> bytes:
    """Return a whole WebSocket frame in a client's form. content: already masked. kind: the frame's
    opcode."""
    size = len(content)
    if size < 126:
        head = bytes([0x80 | kind, 0x80 | size])
    elif size < 2**16:
        head = bytes([0x80 | kind, 0xFE]) + size.to_bytes(2, "big")
    else:
        head = bytes([0x80 | kind, 0xFF]) + size.to_bytes(8, "big")
    return head + MASK + content


def begun_frame(size: int) -> bytes:
    """Return the head of a WebSocket text frame of `size` bytes, masked by zeros."""
    return b"\x81\xff" + size.to_bytes(8, "big") + b"\0\0\0\0"


def upgraded(raw: sockets.socket, key: str | None = None) -> sockets.socket:
    """Upgrade a TCP connection to a WebSocket, and return it."""
    bearing = b"" if key is None else b"Authorization: Bearer %b\r\n" % key.encode()
    raw.sendall(
        b"GET /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        + bearing
        + b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    head = b""
    while b"\r\n\r\n" not in head:
        head += raw.recv(4096)
    assert head.startswith(b"HTTP/1.1 101"), head
    return raw


_LAST = ("response.completed", "response.incomplete", "response.failed")
_DELTAS = {
    "response.output_text": "text",
    "response.reasoning_text": "text",
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
}


def response_of(reply: Reply) -> dict[str, Any]:
    """Return the response a client has after the events of a streamed reply. Each event must be in
    its place."""
    events = named_events(reply)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    created, *rest, last = events
    # One in the background waits before it is begun.
    waits = rest[0]["type"] == "response.queued"
    statuses = ["queued", "queued", "in_progress"] if waits else ["in_progress", "in_progress"]
    opened = [created, *rest[: len(statuses) - 1]]
    assert [event["response"]["status"] for event in opened] == statuses
    assert (created["type"], opened[-1]["type"]) == ("response.created", "response.in_progress")
    del rest[: len(statuses) - 1]
    assert last["type"] in _LAST
    response: dict[str, Any] = last["response"]
    assert created["response"]["id"] == response["id"]
    items = _items(rest)
    assert items == response["output"]
    return response


def _items(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    item: dict[str, Any] | None = None
    text = ""
    for event in events:
        kind = event["type"]
        assert event["output_index"] == len(items), event
        if kind == "response.output_item.added":
            assert item is None and event["item"]["status"] == "in_progress"
            item, text = event["item"], ""
            continue
        assert item is not None, event
        if kind == "response.output_item.done":
            assert event["item"]["id"] == item["id"]
            items.append(event["item"])
            item = None
            continue
        assert event["item_id"] == item["id"]
        if kind.endswith(".delta"):
            assert kind.removesuffix(".delta") in _DELTAS
            text += event["delta"]
        elif kind.removesuffix(".done") in _DELTAS:
            assert event[_DELTAS[kind.removesuffix(".done")]] == text
        else:
            assert kind in ("response.content_part.added", "response.content_part.done"), kind
            assert event["part"]["text"] == text
    assert item is None
    return items
