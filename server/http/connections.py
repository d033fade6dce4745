"""Bounds an HTTP server's connections: how many, and how long each may take to send a header.

Owns the table of open connections; finds the end of a header and reads nothing else. One event
loop's thread. Invariants: a connection over a cap is answered 503 and closed before anything of it
is read; one that has not sent a whole header within HEADER_SECONDS of being accepted is closed.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

HEADER_SECONDS = 10.0
_END_OF_HEADER = b"\r\n\r\n"
_FULL_BODY = (
    b'{"error": {"message": "too many connections: ask again in a moment, or close some", '
    b'"type": "service_unavailable_error", "param": null, "code": "busy"}}'
)
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(_FULL_BODY), _FULL_BODY)
)


MakeProtocol = Callable[[], asyncio.Protocol]
"""Makes the protocol of a new connection."""

Wanted = Callable[[int], bool]
"""Takes the bytes that a read brings. Returns whether they are to be looked at."""


class HttpConnections:
    def __init__(
        self, most: int, most_strangers: int, header_seconds: float = HEADER_SECONDS
    ) -> None:
        """most: at a time, in all. most_strangers: of one address, among connections without an
        admitted request."""
        self._most = most
        self._most_strangers = most_strangers
        self.header_seconds = header_seconds
        self._open: dict[asyncio.BaseTransport, _Connection] = {}
        self._strangers: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def bounded(self, make: MakeProtocol) -> MakeProtocol:
        """A factory of protocols for `create_server`: those that `make` makes, within bounds."""
        return lambda: _Connection(self, make())

    def let_in(self, transport: asyncio.BaseTransport | None) -> None:
        """A request over it was admitted: the connection is no stranger's from now on."""
        connection = None if transport is None else self._open.get(transport)
        if connection is not None and connection.stranger_at is not None:
            self._forget_stranger(connection)

    def count_received(self, transport: asyncio.BaseTransport | None, wanted: Wanted) -> None:
        """From now on `wanted` gets the size of what each read brings, before it is looked at, and
        says whether it is: what is not wanted is thrown away."""
        connection = None if transport is None else self._open.get(transport)
        if connection is not None:
            connection.wanted = wanted

    def enter(self, transport: asyncio.BaseTransport, connection: "_Connection") -> bool:
        """Whether it may stay."""
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if isinstance(peer, tuple) and peer else "unknown"
        if len(self._open) >= self._most or self._strangers[address] >= self._most_strangers:
            return False
        self._open[transport] = connection
        self._strangers[address] += 1
        connection.stranger_at = address
        return True

    def leave(self, transport: asyncio.BaseTransport, connection: "_Connection") -> None:
        if self._open.pop(transport, None) is not None and connection.stranger_at is not None:
            self._forget_stranger(connection)

    def _forget_stranger(self, connection: "_Connection") -> None:
        address = connection.stranger_at
        connection.stranger_at = None
        if address is not None:
            self._strangers[address] -= 1
            if not self._strangers[address]:
                del self._strangers[address]


class _Connection(asyncio.Protocol):
    """Passes everything on to the server's own protocol. stranger_at: the address that it counts
    against; None once it was let in, or where it never was."""

    def __init__(self, connections: HttpConnections, inner: asyncio.Protocol) -> None:
        self._connections = connections
        self._inner = inner
        self._transport: asyncio.BaseTransport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._tail = b""
        self.stranger_at: str | None = None
        self.wanted: Wanted | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if not self._connections.enter(transport, self):
            transport.write(_FULL)
            transport.close()
            return
        self._transport = transport
        self._deadline = asyncio.get_running_loop().call_later(
            self._connections.header_seconds, transport.abort
        )
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        if self._deadline is not None:
            seen = self._tail + data
            self._tail = seen[1 - len(_END_OF_HEADER) :]
            if _END_OF_HEADER in seen:
                self._deadline.cancel()
                self._deadline = None
        if self.wanted is not None and not self.wanted(len(data)):
            return
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._transport is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is None:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self._connections.leave(self._transport, self)
        self._inner.connection_lost(error)
