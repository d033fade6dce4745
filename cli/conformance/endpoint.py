"""A server at a URL, called by plain HTTP: whole replies, and their server-sent events.

Used by one event loop. Each request has its own connection, because some servers close theirs after
a refusal. A reply has at most MOST_BYTES and arrives within the deadline. Refusals are replies like
any other.
"""

import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import aiohttp

from .outcome import Departure

MOST_BYTES = 64 << 20
_BLOCK = 1 << 16
ANTHROPIC_VERSION = "2023-06-01"


class EndpointError(Exception):
    """The URL cannot be used; the message names the reason and the fix."""


@dataclass(frozen=True)
class Event:
    """One server-sent event. name: its event type; empty if it has none."""

    name: str
    data: str

    @cached_property
    def json(self) -> Any:
        """Return the event's data, parsed. Raises Departure if it is not JSON."""
        return _json_of("an event's data", self.data)


@dataclass(frozen=True)
class Reply:
    status: int
    content_type: str
    body: bytes

    @property
    def json(self) -> Any:
        """Return the reply's body, parsed. Raises Departure if it is not JSON."""
        return _json_of("the body", self.body.decode(errors="replace"))

    @property
    def events(self) -> list[Event]:
        """Return the reply's server-sent events, without comments. Raises Departure if the reply is
        not a stream of events."""
        if self.content_type != "text/event-stream":
            raise Departure("content type of a stream", "text/event-stream", self.content_type)
        text = self.body.decode(errors="replace").replace("\r\n", "\n")
        if not text.endswith("\n\n"):
            raise Departure("end of the stream", "an empty line", text[-40:])
        blocks = [_event_of(block) for block in text.split("\n\n") if block.strip("\n")]
        return [event for event in blocks if event is not None]


def _event_of(block: str) -> Event | None:
    """Return the event in one block of a stream. Returns None for a comment, or for a retry time
    only."""
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
    except (ValueError, RecursionError) as error:
        raise Departure(what, "JSON", text) from error


@dataclass(frozen=True)
class Endpoint:
    """An HTTP endpoint under test. url: base URL, without a path or with a path before /v1.
    seconds: timeout of one request."""

    url: str
    seconds: float
    session: aiohttp.ClientSession

    async def get(self, path: str) -> Reply:
        return await self._ask("GET", path, None)

    async def delete(self, path: str) -> Reply:
        return await self._ask("DELETE", path, None)

    async def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        return await self.post_bytes(path, json.dumps(body).encode())

    async def post_bytes(self, path: str, body: bytes) -> Reply:
        return await self._ask("POST", path, body)

    async def _ask(self, method: str, path: str, body: bytes | None) -> Reply:
        """Send a request and return the reply. Raises EndpointError if no server listens, Departure
        if a reply breaks off."""
        headers = {} if body is None else {"Content-Type": "application/json"}
        address = self.url + path
        try:
            async with self.session.request(method, address, data=body, headers=headers) as reply:
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


@asynccontextmanager
async def open_endpoint(
    url: str, key: str = "", seconds: float = 120.0, ca: str = ""
) -> AsyncIterator[Endpoint]:
    """Open an endpoint. key: API key sent to the server; empty for none. ca: PEM file of
    authorities for checking the server; empty for the system's. Raises EndpointError if the file
    cannot be used."""
    headers = {"anthropic-version": ANTHROPIC_VERSION}
    if key:
        headers |= {"Authorization": f"Bearer {key}", "x-api-key": key}
    try:
        trust = ssl.create_default_context(cafile=ca) if ca else True
    except OSError as error:
        raise EndpointError(f"--ca {ca}: {error}: give a PEM file") from error
    connector = aiohttp.TCPConnector(ssl=trust, force_close=True)
    timeout = aiohttp.ClientTimeout(total=seconds)
    async with aiohttp.ClientSession(
        timeout=timeout, connector=connector, headers=headers
    ) as session:
        yield Endpoint(url, seconds, session)


async def _body_of(reply: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for block in reply.content.iter_chunked(_BLOCK):
        body += block
        if len(body) > MOST_BYTES:
            raise Departure("the body's length", f"at most {MOST_BYTES} bytes", "more")
    return bytes(body)
