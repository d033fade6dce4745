"""A TCP proxy on loopback with a link a test may break. For the control channels through it this is
a partition between two hosts.

Owns its listener, its connections and one thread with their event loop. Knows no protocol. Thread
rule: the methods may be called from any thread and have taken effect when they return. Invariant:
in an open connection no byte is lost, doubled or overtaken, as TCP promises. A link holding bytes
back delivers them after heal().
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

Result = TypeVar("Result")

_PIECE = 4096
_SEGMENTS_UNDER_WAY = 64
_CONNECT_SECONDS = 5.0
_PATIENCE_SECONDS = 60.0
"""Time limit in seconds for a change to take effect. Only a very busy host needs nearly so much."""


@dataclass
class _Link:
    """The current state of the link. latency: seconds one way. rate: bytes a second one way; None:
    no limit. open: clear while no byte and no end of stream is forwarded. refuses: connections are
    reset instead of accepted."""

    latency: float = 0.0
    rate: float | None = None
    refuses: bool = False
    open: asyncio.Event = field(default_factory=asyncio.Event)


class TcpProxy:
    """A TCP proxy. `with TcpProxy("127.0.0.1:50051") as proxy`: then connect to proxy.address."""

    def __init__(self, target: str) -> None:
        """Set up the proxy. target: HOST:PORT to forward to; it need not listen yet."""
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy")
        self._thread.start()
        self._link = _Link()
        self._do(self._link.open.set)
        self._server = self._await(asyncio.start_server(self._accept, "127.0.0.1", 0))
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    def cut(self) -> None:
        """Reset every connection through the proxy, and each new one until heal()."""

        def reset() -> None:
            self._link.refuses = True
            for writer in self._writers:
                _reset(writer)

        self._do(reset)

    def black_hole(self) -> None:
        """Make the link half-open: connections stay open and are accepted, but no byte and no end
        of stream passes."""
        self._do(self._link.open.clear)

    def delay(self, seconds: float) -> None:
        """Set the latency of each direction, in seconds."""
        self._do(lambda: setattr(self._link, "latency", seconds))

    def throttle(self, bytes_per_second: float) -> None:
        """Limit the rate of each connection in each direction."""
        self._do(lambda: setattr(self._link, "rate", bytes_per_second))

    def heal(self) -> None:
        """Forward all bytes at once again. Held bytes are delivered, as TCP would do by
        retransmission."""

        def restore() -> None:
            self._link.latency, self._link.rate, self._link.refuses = 0.0, None, False
            self._link.open.set()

        self._do(restore)

    def close(self) -> None:
        """Reset open connections and end the thread."""
        self._await(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _do(self, change: Callable[[], None]) -> None:
        async def run() -> None:
            change()

        self._await(run())

    def _await(self, work: Coroutine[object, object, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_SECONDS)

    async def _end(self) -> None:
        self._server.close()
        for writer in self._writers:
            _reset(writer)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            await self._serve(reader, writer)
        except (OSError, TimeoutError, asyncio.CancelledError):
            # The target is not there, an end broke, or the proxy closes.
            pass
        finally:
            _reset(writer)
            self._writers.discard(writer)
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._link.refuses:
            return
        await self._link.open.wait()
        host, _, port = self._target.rpartition(":")
        async with asyncio.timeout(_CONNECT_SECONDS):
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        self._writers.add(far_writer)
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._carry(reader, far_writer))
                ways.create_task(self._carry(far_reader, writer))
        except* OSError:
            pass
        finally:
            self._writers.discard(far_writer)
            _reset(far_writer)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one direction of one connection, including its end of stream."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_SEGMENTS_UNDER_WAY)

        async def take() -> None:
            while True:
                piece = await reader.read(_PIECE)
                await under_way.put((self._loop.time() + self._link.latency, piece))
                if not piece:
                    return

        async def give() -> None:
            while True:
                due, piece = await under_way.get()
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                await self._link.open.wait()
                if not piece:
                    with contextlib.suppress(OSError):
                        writer.write_eof()
                    return
                writer.write(piece)
                await writer.drain()
                if self._link.rate is not None:
                    await asyncio.sleep(len(piece) / self._link.rate)

        async with asyncio.TaskGroup() as both:
            both.create_task(take())
            both.create_task(give())


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close the connection with RST, not FIN: the peer sees a broken connection at once."""
    if (end := writer.get_extra_info("socket")) is not None and end.fileno() >= 0:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
