"""A client of the Responses API over a WebSocket, whose messages and closes are values."""

import asyncio
import json
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp

from tests.harness.grpc_fixtures import loop_on_a_thread
from tests.harness.waiting import HANG_SECONDS

Result = TypeVar("Result")
Event = dict[str, Any]

LAST = ("response.completed", "response.incomplete", "response.failed", "error")


class Refused(Exception):
    """The upgrade was refused."""

    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.status = status


@dataclass
class ResponseClient:
    """socket: its messages are read by one thread."""

    loop: asyncio.AbstractEventLoop
    socket: aiohttp.ClientWebSocketResponse

    def send(self, text: str | bytes) -> None:
        """bytes: as a binary message."""
        sending = self.socket.send_bytes if isinstance(text, bytes) else self.socket.send_str
        self._run(sending(text))  # type: ignore[arg-type]

    def create(self, **fields: Any) -> None:
        self.send(json.dumps({"type": "response.create", "input": "it was", **fields}))

    def event(self) -> Event:
        """The next one."""
        message = self._run(self.socket.receive())
        assert message.type is aiohttp.WSMsgType.TEXT, message
        found: Event = json.loads(message.data)
        return found

    def events(self) -> list[Event]:
        """Those of a response, to its last."""
        found = [self.event()]
        while found[-1]["type"] not in LAST:
            found.append(self.event())
        return found

    def response(self, **fields: Any) -> Event:
        """The response to what is asked."""
        self.create(**fields)
        events = self.events()
        assert events[-1]["type"] != "error", events[-1]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        found: Event = events[-1]["response"]
        return found

    def refusal(self, **fields: Any) -> tuple[int, str]:
        """The status and the code of the error that is the only answer."""
        self.create(**fields)
        return self.error()

    def error(self) -> tuple[int, str]:
        event = self.event()
        assert event["type"] == "error", event
        return event["status"], event["error"]["code"]

    def closed(self) -> int:
        """The code by which the server closes, once all before it was read."""
        message = self._run(self.socket.receive())
        assert message.type is aiohttp.WSMsgType.CLOSE, message
        code: int = message.data
        return code

    def cut(self) -> None:
        """The connection is lost."""
        connection = self.socket._response.connection
        assert connection is not None and connection.transport is not None
        self.loop.call_soon_threadsafe(connection.transport.abort)

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(HANG_SECONDS)


@contextmanager
def response_socket(
    address: str, headers: dict[str, str] | None = None
) -> Iterator[ResponseClient]:
    """address: HOST:PORT. Raises Refused."""
    with loop_on_a_thread() as loop:

        async def start() -> tuple[aiohttp.ClientSession, aiohttp.ClientWebSocketResponse]:
            session = aiohttp.ClientSession()
            try:
                url = f"http://{address}/v1/responses"
                # What the server sends is bounded by the tests.
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
