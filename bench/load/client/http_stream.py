"""A client of streaming POST /v1/completions, over a plain socket, to keep the client's own work
small.

Thread rule: one event loop's thread. A connection carries one request.
"""

import asyncio
import json
import time
from collections.abc import Sequence

import msgspec

from tasuki.bench.load.words import Words

from .answer import AnswerReader, answered_or_silent

_END_OF_HEAD = b"\r\n\r\n"
_END_OF_EVENT = b"\n\n"
_DATA = b"data: "
_DONE = b"[DONE]"


class _Choice(msgspec.Struct):
    text: str = ""


class _Details(msgspec.Struct):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw()


_decoder = msgspec.json.Decoder(_Event)


class HttpStream(asyncio.Protocol):
    def __init__(self, head: bytes, body: bytes, reader: AnswerReader, words: Words) -> None:
        self._request = (head, body)
        self._reader = reader
        self._words = words
        self._received = b""
        self._events = b""
        self._in_body = False
        self._done = False
        self._transport: asyncio.Transport | None = None
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.writelines(self._request)

    def data_received(self, data: bytes) -> None:
        now = self._reader.last = time.monotonic()
        self._received += data
        if not self._in_body and not self._read_head():
            return
        self._events += self._take_chunks()
        *events, self._events = self._events.split(_END_OF_EVENT)
        for event in events:
            self._read_event(now, event)

    def connection_lost(self, error: Exception | None) -> None:
        answer = self._reader.answer
        answer.ended = time.monotonic()
        if not self._done and not answer.error:
            answer.error = f"the connection ended: {error!r} {self._received[:200]!r}"
        if not self.over.done():
            self.over.set_result(None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _read_head(self) -> bool:
        """Parse the response head if it is complete. Returns True once the chunked body has begun.
        Other statuses than 200 fail."""
        head, found, rest = self._received.partition(_END_OF_HEAD)
        if not found:
            return False
        status = head.split(b" ", 2)[1]
        if status != b"200":
            self._reader.answer.error = f"HTTP {status.decode()} {rest[:300]!r}"
            self.close()
            return False
        self._in_body, self._received = True, rest
        return True

    def _take_chunks(self) -> bytes:
        """Return the content of all completely received HTTP chunks, and remove them from the
        buffer."""
        received, at, content = self._received, 0, []
        while (line_end := received.find(b"\r\n", at)) >= 0:
            begin = line_end + 2
            end = begin + int(received[at:line_end], 16)
            if len(received) < end + 2:
                break
            content.append(received[begin:end])
            at = end + 2
        self._received = received[at:]
        return b"".join(content)

    def _read_event(self, now: float, event: bytes) -> None:
        if not event.startswith(_DATA):
            return
        if event.endswith(_DONE):
            self._done = True
            self.close()
            return
        found = _decoder.decode(event[len(_DATA) :])
        if found.error:
            self._reader.answer.error = bytes(found.error).decode()[:300]
        if found.usage is not None and found.usage.prompt_tokens_details is not None:
            self._reader.answer.cached_tokens = found.usage.prompt_tokens_details.cached_tokens
        for choice in found.choices:
            if choice.text:
                self._reader.take(now, self._words.tokens(choice.text))


class HttpCaller:
    """An HTTP client. address: HOST:PORT of the server. temperature: of the sampling."""

    def __init__(self, address: str, words: Words, temperature: float = 0.0) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._words = words
        self._temperature = temperature

    async def ask(self, prompt: Sequence[int], reader: AnswerReader, patience: float) -> None:
        """Send a request. Returns when the answer has ended, or nothing has arrived for `patience`
        seconds. Cancelling closes the connection."""
        body = json.dumps(
            {
                "prompt": list(prompt),
                "max_tokens": reader.answer.asked,
                "temperature": self._temperature,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        ).encode()
        stream = HttpStream(head, body, reader, self._words)
        loop = asyncio.get_running_loop()
        reader.answer.started = reader.last = time.monotonic()
        try:
            await loop.create_connection(lambda: stream, self._host, self._port)
            await answered_or_silent(stream.over, reader, patience)
        except OSError as error:
            reader.answer.error = repr(error)
        finally:
            stream.close()

    async def close(self) -> None:
        """Do nothing, because every request has its own connection."""
