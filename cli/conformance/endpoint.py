"""A server at a URL, asked by plain HTTP: whole replies, and their server-sent events.

Owns one connection pool, of one event loop. A reply has at most MOST_BYTES and comes within the
deadline. Refusals are replies like any other.
"""

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import Any

import aiohttp

from .outcome import Departure

MOST_BYTES = 64 << 20
_BLOCK = 1 << 16
ANTHROPIC_VERSION = "2023-06-01"


class EndpointError(Exception):
    """Nobody answers at the URL; the message names it and the mend."""


@dataclass(frozen=True)
class Event:
    """One server-sent event. name: empty where it has none."""

    name: str
    data: str

    @cached_property
    def json(self) -> Any:
        """Raises Departure where the data is no JSON."""
        return _json_of("an event's data", self.data)


@dataclass(frozen=True)
class Reply:
    status: int
    content_type: str
    body: bytes

    @property
    def json(self) -> Any:
        """Raises Departure where the body is no JSON."""
        return _json_of("the body", self.body.decode(errors="replace"))

    @property
    def events(self) -> list[Event]:
        """Those of a stream, without comments. Raises Departure where it is no stream of events."""
        if self.content_type != "text/event-stream":
            raise Departure("content type of a stream", "text/event-stream", self.content_type)
        text = self.body.decode(errors="replace").replace("\r\n", "\n")
        if not text.endswith("\n\n"):
            raise Departure("end of the stream", "an empty line", text[-40:])
        blocks = [_event_of(block) for block in text.split("\n\n") if block.strip("\n")]
        return [event for event in blocks if event is not None]


def _event_of(block: str) -> Event | None:
    """None: a comment, or nothing but a retry time."""
    name, data = "", []
    for line in block.strip("\n").split("\n"):
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if key == "event":
            name = value
        elif key == "data":
            data.append(value)
        elif key not in ("", "id", "retry"):
            raise Departure("a line of the stream", "event:, data: or a comment", line)
    return Event(name, "\n".join(data)) if data else None


def _json_of(what: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Departure(what, "JSON", text) from error


@dataclass
class Endpoint:
    """url: without a path, or with one before /v1. key: empty for none. seconds: of one request.
    ca: PEM file; empty: the system's authorities."""

    url: str
    key: str = field(default="", repr=False)
    seconds: float = 120.0
    ca: str = ""
    _session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Endpoint":
        timeout = aiohttp.ClientTimeout(total=self.seconds)
        trust = ssl.create_default_context(cafile=self.ca) if self.ca else True
        self._session = aiohttp.ClientSession(
            timeout=timeout, connector=aiohttp.TCPConnector(ssl=trust), headers=self._headers()
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._session is not None
        await self._session.close()

    def _headers(self) -> Mapping[str, str]:
        common = {"anthropic-version": ANTHROPIC_VERSION}
        if not self.key:
            return common
        return {**common, "Authorization": f"Bearer {self.key}", "x-api-key": self.key}

    async def get(self, path: str) -> Reply:
        return await self._ask("GET", path, None)

    async def delete(self, path: str) -> Reply:
        return await self._ask("DELETE", path, None)

    async def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        return await self.post_bytes(path, json.dumps(body).encode())

    async def post_bytes(self, path: str, body: bytes) -> Reply:
        return await self._ask("POST", path, body)

    async def _ask(self, method: str, path: str, body: bytes | None) -> Reply:
        """Raises EndpointError where nobody listens, Departure where a reply breaks off."""
        assert self._session is not None
        headers = {} if body is None else {"Content-Type": "application/json"}
        address = self.url + path
        try:
            async with self._session.request(method, address, data=body, headers=headers) as reply:
                return Reply(reply.status, reply.content_type, await _body_of(reply))
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
            raise EndpointError(
                f"{self.url}: {error}: is a server running there? Give its URL, as "
                "http://127.0.0.1:8000"
            ) from error
        except TimeoutError as error:
            raise Departure(
                f"{method} {path}", f"a whole reply within {self.seconds:g} s", "none"
            ) from error
        except aiohttp.ClientError as error:
            raise Departure(f"{method} {path}", "a whole reply", str(error)) from error


async def _body_of(reply: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for block in reply.content.iter_chunked(_BLOCK):
        body += block
        if len(body) > MOST_BYTES:
            raise Departure("the body's length", f"at most {MOST_BYTES} bytes", "more")
    return bytes(body)
