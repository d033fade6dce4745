"""Streaming chats over HTTP, timed at each arrival, for any server of OpenAI's chat API.

Thread rule: one event loop's thread. A request's body is encoded before its time begins.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import aiohttp

from tasuki.bench.errors import BenchError

from .drawn import Screenshot

_DATA = b"data:"
_END_OF_EVENT = b"\n\n"
_SILENCE_SECONDS = 120.0

Message = dict[str, Any]


def user(*parts: str | Screenshot) -> Message:
    """Return a user's message of texts and pictures."""
    return {"role": "user", "content": [_part(part) for part in parts]}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


@dataclass
class Chat:
    """One streamed answer. times: monotonic seconds of each arrival with text. began: of the
    request. ended: of the last byte. error: reason of a failure, if any."""

    began: float = 0.0
    ended: float = 0.0
    times: list[float] = field(default_factory=list)
    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def first_token_seconds(self) -> float:
        """Return the time from the request to its first text. Raises BenchError without any."""
        if self.error or not self.times:
            raise BenchError(f"a chat failed: {self.error or 'it has no text'}")
        return self.times[0] - self.began

    @property
    def prompt_tokens(self) -> int:
        found: int = self.usage.get("prompt_tokens", 0)
        return found

    @property
    def cached_tokens(self) -> int:
        details = self.usage.get("prompt_tokens_details") or {}
        found: int = details.get("cached_tokens") or 0
        return found

    def gaps(self, begin: float, end: float) -> Iterator[float]:
        """Yield the seconds between two arrivals, both inside a window of monotonic seconds."""
        inside = [at for at in self.times if begin <= at < end]
        yield from (after - before for before, after in pairwise(inside))


class ChatClient:
    """A client of one server. address: HOST:PORT."""

    def __init__(self, address: str, model: str) -> None:
        """model: the served model's name."""
        self._url = f"http://{address}/v1/chat/completions"
        self._model = model
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "ChatClient":
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=_SILENCE_SECONDS)
        connector = aiohttp.TCPConnector(limit=0)
        self._http = aiohttp.ClientSession(timeout=timeout, connector=connector)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._http is not None
        await self._http.close()

    def body(self, messages: Sequence[Message], tokens: int, **fields: Any) -> bytes:
        """Return the request's body. tokens: of its answer. fields: further ones of the server."""
        wanted = {
            "model": self._model,
            "messages": messages,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }
        return json.dumps(wanted).encode()

    async def ask(self, body: bytes, chat: Chat | None = None) -> Chat:
        """Send a request, and return its answer. chat: filled meanwhile. Failures of the server are
        in the answer; cancelling closes the connection."""
        assert self._http is not None
        chat = Chat() if chat is None else chat
        rest = b""
        chat.began = time.monotonic()
        try:
            headers = {"Content-Type": "application/json"}
            async with self._http.post(self._url, data=body, headers=headers) as response:
                if response.status != 200:
                    chat.error = f"HTTP {response.status}: {(await response.text())[:300]}"
                    return chat
                async for piece in response.content.iter_any():
                    now = time.monotonic()
                    *events, rest = (rest + piece).split(_END_OF_EVENT)
                    for event in events:
                        _read(chat, now, event.strip())
        except (TimeoutError, aiohttp.ClientError) as error:
            chat.error = repr(error)[:300]
        finally:
            chat.ended = time.monotonic()
        return chat


async def fresh(client: ChatClient, body: bytes) -> Chat:
    """Send a request, and return its answer. Raises BenchError if it failed."""
    chat = await client.ask(body)
    if chat.error or not chat.times:
        raise BenchError(f"a chat failed: {chat.error or 'it has no text'}")
    return chat


def _part(part: str | Screenshot) -> Message:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image_url", "image_url": {"url": part.url}}


def _read(chat: Chat, now: float, event: bytes) -> None:
    """Read one event of a stream. Text of the model's thoughts counts as text."""
    if not event.startswith(_DATA) or event.endswith(b"[DONE]"):
        return
    found = json.loads(event[len(_DATA) :])
    if "error" in found:
        chat.error = json.dumps(found["error"])[:300]
        return
    chat.usage = found.get("usage") or chat.usage
    for choice in found.get("choices") or ():
        delta = choice.get("delta") or {}
        text = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
        if text:
            chat.times.append(now)
            chat.text += text
