"""Links between the processes of one node with front workers.

NodeSockets are the node's Unix sockets, in a folder private to this user. Frames between a front
worker and the node's registry are those between a front and its engine (engine/apart/frames.py).
Pure; one thread at a time for each reader.

RegistryLink is a worker's end of the socket to the registry. Its asks (numbered messages with one
reply each) have these invariants. An ask ends with its typed reply, or with the socket. If the
caller cancels an ask, the ask leaves at once and its reply is dropped. Messages arrive in the order
of sending, so an ask's number is higher than all earlier numbers. The end of the socket ends the
process, because the registry is the node.

EngineSocket is a worker's own socket to the engine's process. Thread rule of both: the worker's
event loop.
"""

import asyncio
import itertools
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tasuki.engine.apart.frame_protocol import FrameProtocol
from tasuki.engine.apart.frames import FrameReader, TakeMessages, framed, submit_frame
from tasuki.engine.apart.front_links import NUMBER_BYTES
from tasuki.engine.apart.media_frames import ArrivedMedia, media_frame
from tasuki.engine.messages.media import MediaBlock
from tasuki.engine.messages.types import reader_of
from tasuki.server.config import ServerConfig
from tasuki.server.errors import ServerError
from tasuki.utils.signatures import Notice

from . import messages as w
from .messages import KINDS, error_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NodeSockets:
    """The Unix sockets of a node with front workers. folder: their folder, private to this user; it
    exists as long as the node."""

    folder: str

    @property
    def engine(self) -> str:
        """Return the path of the Unix socket to the engine, for front workers."""
        return str(Path(self.folder) / "engine")

    @property
    def grpc(self) -> str:
        """Return the path of the Unix socket with the registry's gRPC services."""
        return str(Path(self.folder) / "grpc")

    @property
    def http(self) -> str:
        """Return the path of the Unix socket with the registry's HTTP routes."""
        return str(Path(self.folder) / "http")


@contextmanager
def node_sockets(config: ServerConfig) -> Iterator[NodeSockets | None]:
    """Create and yield the node's Unix sockets for the life of the node. Yield None if the node has
    one front process."""
    if config.front_workers == 1:
        yield None
        return
    with TemporaryDirectory(prefix="tasuki-") as folder:
        yield NodeSockets(folder)


_NUMBER_OF = {kind: number for number, kind in enumerate(KINDS)}
_READ = tuple(map(reader_of, KINDS))


def worker_frame(messages: Sequence[Any]) -> bytearray:
    """Encode messages between worker and registry as one frame. Raises KeyError if a value is no
    message, and msgspec's errors if a field is no plain value."""
    return framed([(_NUMBER_OF[type(message)], message) for message in messages])


def message_frame(message: Any) -> tuple[bytearray, tuple[MediaBlock, ...]]:
    """Encode a message as one frame, and return the blocks of its media: those of stored responses
    and of sessions. Raises as worker_frame(); also OSError and MediaGone."""
    if not _has_media(message):
        return worker_frame([message]), ()
    made = media_frame([(_NUMBER_OF[type(message)], message)])
    return framed(made.bodies), made.blocks


def _has_media(message: Any) -> bool:
    match message:
        case w.KeepResponse(response=response) | w.ResponseFound(response=response):
            # Unset in a response of text.
            found = None if response is None else response.turn.pictures
            return bool(found) and found is not None and bool(found.placed)
        case w.AppendToLog(added=log) | w.TurnBegun(prompt=log):
            return bool(log.pictures)
        case _:
            return False


def worker_frames() -> FrameReader:
    """Return a reader of frames without media."""
    return FrameReader(_READ)


def frames_with(media: ArrivedMedia) -> FrameReader:
    """Return a reader of frames whose media come as `media`."""
    return FrameReader(media.readers(KINDS), media)


_GONE = "this front has lost its node's registry; ask again"


TakeMessage = Callable[[Any], None]
"""A function to handle one message of the registry. Returns without waiting."""


class RegistryLink(FrameProtocol):
    def __init__(self, take: TakeMessage, on_end: Notice) -> None:
        """Set up the link. take: called with each message other than a reply. on_end: called when
        the registry is gone."""
        media = ArrivedMedia()
        super().__init__("the registry", frames_with(media), media)
        self._take_unasked = take
        self._on_gone = on_end
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[asyncio.Future[Any], TakeMessage | None]] = {}
        self._closed = asyncio.Event()
        self._closes = False

    @classmethod
    async def over(
        cls, connection: socket.socket, take: TakeMessage, on_end: Notice
    ) -> "RegistryLink":
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(lambda: cls(take, on_end), sock=connection)
        return link

    def number(self) -> int:
        """Return the number for the next ask. Send this ask before taking another number."""
        return next(self._numbers)

    @property
    def waiting(self) -> int:
        """Return the number of asks waiting for their reply."""
        return len(self._waiting)

    def notify(self, note: w.FromWorker) -> None:
        """Send a message without waiting. If it has a reply, no caller waits for it. Raises the
        errors of message_frame()."""
        self.write(*message_frame(note))

    def ask(self, ask: w.Ask, at_once: TakeMessage | None = None) -> "asyncio.Future[Any]":
        """Send the ask now and return the future of its reply. Cancel the future to give the ask
        up. at_once: called with the reply before any later message is handled, unless the ask was
        given up.

        Raises the errors of message_frame(); then nothing was asked. The future raises the
        refusal's error, the error of `at_once`, and ServerError if the registry is gone.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._closed.is_set():
            future.set_exception(ServerError(_GONE))
            return future
        self.write(*message_frame(ask))
        self._waiting[ask.call] = future, at_once
        future.add_done_callback(lambda _: self._waiting.pop(ask.call, None))
        return future

    async def end(self) -> None:
        """Send the messages still queued, and close the link. on_end is not called."""
        self._closes = True
        self.close()
        await self._closed.wait()

    def taken(self, messages: Sequence[Any]) -> None:
        for message in messages:
            self._take_one(message)

    def _take_one(self, message: Any) -> None:
        if not isinstance(message, w.Reply):
            self._take_unasked(message)
            return
        future, at_once = self._waiting.get(message.call, (None, None))
        if future is None or future.done():
            return
        if isinstance(message, w.Refused):
            future.set_exception(error_of(message))
            return
        try:
            if at_once is not None:
                at_once(message)
        except Exception as error:
            log.exception("what a reply was for failed")
            future.set_exception(ServerError(f"the engine could not be asked: {error!r}"))
            return
        future.set_result(message)

    def ended(self, why: Exception | None) -> None:
        self._closed.set()
        for future, _ in [*self._waiting.values()]:
            if not future.done():
                future.set_exception(ServerError(_GONE))
        if not self._closes:
            self._on_gone()


class EngineSocket(FrameProtocol):
    def __init__(self, take: TakeMessages, on_end: Notice) -> None:
        """Set up the socket. take: called with the messages of one engine step for this worker.
        on_end: called when the engine takes no more messages."""
        super().__init__("the engine", FrameReader())
        self._take = take
        self._on_end = on_end

    def taken(self, messages: Sequence[Any]) -> None:
        self._take(messages)

    def ended(self, why: Exception | None) -> None:
        self._on_end()

    @classmethod
    async def to(
        cls,
        path: str,
        number: int,
        take: TakeMessages,
        on_end: Notice,
    ) -> "EngineSocket":
        """Connect to the engine. path: from NodeSockets.engine. number: number of this worker."""
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(lambda: cls(take, on_end), path)
        link.write(number.to_bytes(NUMBER_BYTES, "little"))
        return link

    def post(self, messages: Sequence[Any]) -> None:
        """Send messages to the engine in order, with the media of pictures. Raises the errors of
        submit_frame()."""
        self.write(*submit_frame(messages))
