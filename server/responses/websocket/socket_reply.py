"""A response on its way to its WebSocket: the events of a stream, each a message.

One event loop's thread. Invariant: while nothing else is sent, something is every
KEEP_ALIVE_SECONDS, since some clients count no pings.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

import msgspec

from tasuki.engine.messages import Finished
from tasuki.server.errors import ServerError
from tasuki.server.http.errors import RETRIED, error_body, error_status, retry_seconds
from tasuki.server.http.event_stream import KEEP_ALIVE_SECONDS
from tasuki.server.http.sockets.text_socket import TextSocket
from tasuki.server.replies.named_events import bodies_of
from tasuki.server.replies.reply import FIRST_LOOK_SECONDS, AnswerWriter, Choice
from tasuki.server.text.text_answer import first_looks
from tasuki.server.unread_answer import AnswerPart

log = logging.getLogger(__name__)

_SILENCE_SECONDS = 0.75 * KEEP_ALIVE_SECONDS


class SocketReply:
    def __init__(self, socket: TextSocket, writer: AnswerWriter) -> None:
        self._socket = socket
        self._writer = writer
        self.failed: Exception | None = None
        """The error that ended the response behind its first events."""
        self.ends = False
        """The last event is on its way, and the client may ask for the next response."""
        self._is_silent = False

    async def send_at_once(self, last: Callable[[], bytes]) -> None:
        """Send a response that has no answer. last: makes its last event. Raises
        ConnectionError."""
        self.ends = True
        await self._send(self._writer.opening() + last())
        await self._socket.sent()

    async def send(
        self, choice: Choice, answers: Sequence[AsyncGenerator[AnswerPart, None]]
    ) -> None:
        """Send what the answer, which is one, becomes. Raises ServerError where it failed before
        its first event, and ConnectionError."""
        writer, last = self._writer, b""
        async with first_looks(answers, FIRST_LOOK_SECONDS) as (parts,):
            keeping = asyncio.create_task(self._keep_alive())
            try:
                await self._send(writer.opening())
                last = await self._sent_parts(choice, parts)
            except ConnectionError:
                raise
            except Exception as error:
                if not isinstance(error, ServerError):
                    log.exception("%s failed", writer.id)
                self.failed = error
                last = writer.failure(error)
            finally:
                keeping.cancel()
            self.ends = True
            await self._send(last)
            await self._socket.sent()

    async def _sent_parts(self, choice: Choice, parts: AsyncIterator[AnswerPart]) -> bytes:
        """Return what ends the response."""
        async for part in parts:
            if isinstance(part, Finished):
                return choice.ending(part)
            await self._send(choice.written(part))
        raise AssertionError("an answer ended without its ending")

    async def _send(self, events: bytes) -> None:
        self._is_silent = False
        await self._socket.send(bodies_of(events))

    async def _keep_alive(self) -> None:
        """Two halves of a silence: one marks it, one ends it."""
        while True:
            self._is_silent = True
            await asyncio.sleep(_SILENCE_SECONDS)
            if self._is_silent:
                try:
                    await self._send(self._writer.keep_alive())
                except ConnectionError:
                    return


def error_message(error: Exception) -> bytes:
    """Return a message that ends a request without a response. Some clients look for the seconds to
    wait among headers, where HTTP has them."""
    status = error_status(error)
    headers = {"headers": {"retry-after": str(retry_seconds(error))}} if status in RETRIED else {}
    return msgspec.json.encode({"type": "error", "status": status, **error_body(error), **headers})
