"""`python -m tasuki.server.pictures.fetching.worker FD SOURCE`: a process that fetches pictures.

FD: a socket of datagrams to the client. SOURCE: MODULE:NAME of a function that returns a
PictureGetter. Not for people: a PictureFetcher starts it, and it ends with its client's thread.

It has the network, and looks at no byte of a content. It writes no file, and has no environment.
Its memory and its number of calls are bounded. A call has one bound of time, from the resolver to
the last byte.
"""

import asyncio
import resource
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, cast

import aiohttp
import msgspec

from tasuki.utils.system import die_with_parent

from .addresses import FetchHosts, RefusedAddress, read_address
from .getter import SEND, PictureGetter, TooLarge
from .messages import (
    LENGTH,
    MOST_MESSAGE_BYTES,
    MOST_REASON,
    FetchJob,
    FetchOutcome,
    FetchReply,
)

MOST_CALLS = 16
"""Calls at a time, of all callers."""
_MEMORY_BYTES = 4 << 30
"""Address space. Contents take a tenth of it at most."""


class FetchWorker:
    """The worker's loop."""

    def __init__(self, connection: socket.socket, getter: PictureGetter) -> None:
        self._connection = connection
        self._getter = getter
        self._calls: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until the client closes its end. Raises OSError, msgspec.MsgspecError."""
        loop = asyncio.get_running_loop()
        self._connection.setblocking(False)
        ended: asyncio.Future[None] = loop.create_future()

        def take() -> None:
            try:
                if not self._take():
                    ended.set_result(None)
            except BlockingIOError:
                return
            except BaseException as error:
                ended.set_exception(error)

        loop.add_reader(self._connection, take)
        try:
            await ended
        finally:
            loop.remove_reader(self._connection)
            for call in self._calls:
                call.cancel()

    def _take(self) -> bool:
        """Begin the next job. Return False at the client's end."""
        data, handles, _, _ = socket.recv_fds(self._connection, MOST_MESSAGE_BYTES, 1)
        if not data:
            return False
        replies = socket.socket(fileno=handles[0])
        replies.setblocking(False)
        job = msgspec.msgpack.decode(data, type=FetchJob)
        call = asyncio.get_running_loop().create_task(self._serve(job, replies))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return True

    async def _serve(self, job: FetchJob, replies: socket.socket) -> None:
        with replies:
            if len(self._calls) > MOST_CALLS:
                reply, content = _refused("waits for others: ask again")
            else:
                reply, content = await self._fetched(job)
            head = msgspec.msgpack.encode(reply)
            # A client that left reads nothing.
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(job.seconds):
                    sent = LENGTH.pack(len(head)) + head + content
                    await asyncio.get_running_loop().sock_sendall(replies, sent)

    async def _fetched(self, job: FetchJob) -> tuple[FetchReply, bytes]:
        try:
            url = read_address(job.url, FetchHosts(job.hosts))
            async with asyncio.timeout(job.seconds):
                content = await self._getter.get(url, job.most_bytes)
        except TooLarge:
            return FetchReply(FetchOutcome.TOO_LARGE), b""
        except RefusedAddress as error:
            return _refused(str(error))
        except TimeoutError:
            return _refused(f"did not come within {job.seconds:g} s: {SEND}")
        except aiohttp.ClientConnectorDNSError:
            return _refused(f"is of a host without an address: {SEND}")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # Texts of a server are not repeated.
            return _refused(f"cannot be fetched ({type(error).__name__}): {SEND}")
        return FetchReply(FetchOutcome.FETCHED, size=len(content)), content


def _refused(reason: str) -> tuple[FetchReply, bytes]:
    return FetchReply(FetchOutcome.REFUSED, reason[:MOST_REASON]), b""


def _bound_this_process() -> None:
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_AS, _MEMORY_BYTES),
    ):
        with suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))


def main(argv: list[str]) -> None:
    die_with_parent()
    # The daemon handles a signal to the whole group, and ends this process.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _bound_this_process()
    connection = socket.socket(fileno=int(argv[0]))
    module, _, name = argv[1].partition(":")
    make = cast(Callable[[], PictureGetter], cast(Any, getattr(import_module(module), name)))

    async def serve() -> None:
        await FetchWorker(connection, make()).run()

    asyncio.run(serve())


if __name__ == "__main__":
    main(sys.argv[1:])
