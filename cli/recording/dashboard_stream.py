"""A node's dashboard streams, read from either of its ports as JSON values.

Reads server-sent events and sends the key; values stay JSON. A separate thread reads, so the caller
can check the clock while no values arrive.
"""

import http.client
import json
import queue
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tasuki.cli.node_target import FIX, NodeTarget, answers_http

if TYPE_CHECKING:
    from tasuki.client.errors import ClientError

_CONNECT_SECONDS = 10.0
_LOOK_SECONDS = 0.5
_SILENT_SECONDS = 30.0
"""Seconds without a value from a stream before the node is checked. One step of a busy engine may
take as long."""
_MOST_READ = 64 << 10
_MOST_WAITING = 4096

Value = dict[str, Any]


@dataclass(frozen=True)
class HttpTarget(NodeTarget):
    def values(self, path: str) -> Iterator[Value]:
        """Yield the values of followed(), without its None items."""
        for value in self.followed(path):
            if value is not None:
                yield value

    def followed(self, path: str) -> Generator[Value | None, None, None]:
        """Yield the values of the node's stream at `path`, for example /debug/stream. Yields None
        after each half second without a value. Raises ClientError if the node refuses, is gone, or
        ends the stream."""
        address = self.http_address()
        stream = _Stream(*self._opened(address, path))
        last_at = time.monotonic()
        try:
            while True:
                value = stream.next(_LOOK_SECONDS)
                now = time.monotonic()
                if value is not None:
                    last_at = now
                elif now - last_at > _SILENT_SECONDS:
                    if not answers_http(address, self.ca, self.api_key):
                        raise _unavailable(f"http {address}: the node answers no more")
                    last_at = now
                yield value
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise _unavailable(f"http {address}: {_cause(error)}") from error
        finally:
            stream.close()

    def _opened(self, address: str, path: str) -> tuple[Any, socket.socket]:
        """Open the stream at `path` of the node. Returns the response, and its connection without a
        read timeout. Raises ClientError."""
        scheme = "https" if self.ca else "http"
        trust = ssl.create_default_context(cafile=self.ca) if self.ca else None
        request = urllib.request.Request(f"{scheme}://{address}{path}")
        if self.api_key:
            request.add_header("Authorization", f"Bearer {self.api_key}")
        try:
            reply = urllib.request.urlopen(request, timeout=_CONNECT_SECONDS, context=trust)
        except (OSError, http.client.HTTPException) as error:
            if refusal := _refusal(error):
                raise _denied(refusal) from error
            raise _unavailable(
                f"http {address}: {_cause(error)}: is a node running there? If so, {FIX}"
            ) from error
        connection: socket.socket = reply.fp.raw._sock
        connection.settimeout(None)
        return reply, connection


class _Stream:
    """One open stream of a node. Owns the HTTP response and its reader thread. Call close()
    once."""

    def __init__(self, reply: Any, connection: socket.socket) -> None:
        self._reply = reply
        self._connection = connection
        self._values: queue.Queue[Value | Exception] = queue.Queue(_MOST_WAITING)
        self._closed = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def next(self, seconds: float) -> Value | None:
        """Return the stream's next value, or None if none arrives in `seconds`. Raises OSError,
        ValueError, HTTPException after the stream has ended."""
        try:
            value = self._values.get(timeout=seconds)
        except queue.Empty:
            return None
        if isinstance(value, Exception):
            raise value
        return value

    def close(self) -> None:
        self._closed = True
        # Wake the reading thread: it closes the rest.
        with suppress(OSError):
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)

    def _read(self) -> None:
        ended: Exception = ConnectionResetError("the node ended the stream")
        try:
            for line in self._reply:
                if line.startswith(b"data: "):
                    self._put(json.loads(line[6:]))
        except (OSError, ValueError, http.client.HTTPException) as error:
            ended = error
        finally:
            self._reply.close()
        self._put(ended)

    def _put(self, value: Value | Exception) -> None:
        while not self._closed:
            with suppress(queue.Full):
                self._values.put(value, timeout=_LOOK_SECONDS)
                return


def _unavailable(message: str) -> "ClientError":
    import grpc

    from tasuki.client.errors import ClientError

    return ClientError(message, grpc.StatusCode.UNAVAILABLE, None)


def _denied(message: str) -> "ClientError":
    import grpc

    from tasuki.client.errors import ClientError

    return ClientError(message, grpc.StatusCode.PERMISSION_DENIED, None)


def _refusal(error: Exception) -> str:
    """Return the node's own error message in a failed request, or an empty string if no node
    refused it."""
    if not isinstance(error, urllib.error.HTTPError):
        return ""
    try:
        said = str(json.loads(error.read(_MOST_READ))["error"]["message"])
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return ""
    return f"{said} (--api-key)" if error.code in (401, 403) else said


def _cause(error: Exception) -> str:
    """Return the cause of a failed request as text. A reply other than HTTP may hold any bytes."""
    if isinstance(error, http.client.HTTPException | ValueError):
        return "what answers is no HTTP"
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror.lower()
    return str(error)
