"""An event loop's end of a socket with frames."""

import asyncio
import errno
import logging
import socket
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from tasuki.engine.messages.media import MediaBlock

from .frames import BrokenFrame, FrameReader
from .media_frames import ArrivedMedia

log = logging.getLogger(__name__)

_READ_BYTES = 1 << 18
_FULL_SECONDS = 0.01
"""Seconds until descriptors are sent again, after the system had too many on their way."""


class FrameProtocol(asyncio.Protocol):
    """One end of a socket with frames, in an asyncio event loop.

    Owns its transport and the received part of an incomplete frame. Thread rule: the event loop's.
    Invariants: ended() is called once, and taken() is never called after it, nor after a broken
    frame. Frames leave in the order of their writes.
    """

    def __init__(self, peer: str, reader: FrameReader, media: ArrivedMedia | None = None) -> None:
        """peer: name of the other end, for the log. reader: decodes received bytes. media: keeps
        descriptors for the reader; None: the other end sends none."""
        self._peer = peer
        self._reader = reader
        self._media = media
        self._broken: BrokenFrame | None = None
        self._transport: asyncio.Transport | None = None
        self._writer: MediaWriter | None = None
        self._input: MediaInput | None = None

    def taken(self, messages: Sequence[Any]) -> None:
        """Handle a frame's messages; for subclasses."""
        raise NotImplementedError

    def ended(self, why: Exception | None) -> None:
        """Handle the end of the socket; for subclasses. why: a BrokenFrame, the socket's own error,
        or None if either end closed it."""
        raise NotImplementedError

    def write(self, data: bytes | bytearray, blocks: Sequence[MediaBlock] = ()) -> None:
        """Send data on the socket. blocks: passed with its first byte. Drop it if the socket is not
        connected yet."""
        if self._transport is None:
            return
        if blocks and self._writer is None:
            self._writer = MediaWriter(self._transport)
        if self._writer is None:
            self._transport.write(data)
        else:
            self._writer.write(data, blocks)

    def close(self) -> None:
        """Close the socket after all waiting data is sent. Do nothing before the connection."""
        if self._writer is not None:
            self._writer.end()
        elif self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # A transport without a socket brings no descriptors.
        if self._media is not None and transport.get_extra_info("socket") is not None:
            self._input = MediaInput(transport, self._media, self.data_received)

    def resume_writing(self) -> None:
        if self._writer is not None:
            self._writer.flush()

    def data_received(self, data: bytes) -> None:
        try:
            for messages in self._reader.take(data):
                self.taken(messages)
        except BrokenFrame as error:
            log.error("%s sent what is no frame: %s", self._peer, error)
            self._broken = error
            if self._input is not None:
                self._input.close()
            assert self._transport is not None
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        for twin in (self._writer, self._input):
            if twin is not None:
                twin.close()
        # They refer to this object.
        self._writer = self._input = None
        if self._media is not None:
            self._media.close()
        self.ended(self._broken or exc)


class MediaWriter:
    """Frames that wait until a transport's buffer is empty: one with descriptors, and all later
    ones. Owns a twin of the transport's socket. Frames keep their blocks until they are sent."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._socket = _twin(transport)
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[bytes | bytearray, Sequence[MediaBlock]]] = deque()
        self._later: asyncio.TimerHandle | None = None
        self._ends = False
        # The protocol learns of each empty buffer.
        transport.set_write_buffer_limits(0)

    def write(self, data: bytes | bytearray, blocks: Sequence[MediaBlock]) -> None:
        if not (blocks or self._waiting):
            self._transport.write(data)
            return
        if self._transport.is_closing():
            return
        self._waiting.append((data, blocks))
        self.flush()

    def end(self) -> None:
        """Close the transport after the waiting frames."""
        self._ends = True
        self.flush()

    def flush(self) -> None:
        """Send waiting frames as far as the socket takes them now."""
        while self._waiting:
            data, blocks = self._waiting[0]
            if not blocks:
                self._transport.write(data)
            elif self._transport.get_write_buffer_size() or not self._sent(data, blocks):
                return
            self._waiting.popleft()
        if self._ends:
            self._transport.close()

    def close(self) -> None:
        """Drop waiting frames. Idempotent."""
        self._waiting.clear()
        if self._later is not None:
            self._later.cancel()
        if self._socket.fileno() >= 0:
            self._loop.remove_writer(self._socket)
            self._socket.close()

    def _sent(self, data: bytes | bytearray, blocks: Sequence[MediaBlock]) -> bool:
        """Send a frame's begin with its descriptors, and hand its rest to the transport. Return
        False if it has to wait, or the socket has ended."""
        handles = array("i", [block.handle for block in blocks])
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handles)]
        self._loop.remove_writer(self._socket)
        try:
            count = self._socket.sendmsg([data], rights, socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            self._loop.add_writer(self._socket, self.flush)
            return False
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:
                self._later = self._loop.call_later(_FULL_SECONDS, self.flush)
                return False
            log.error("a frame with pictures cannot be sent: %s", error.strerror)
            self._transport.abort()
            return False
        if count < len(data):
            self._transport.write(memoryview(data)[count:])
        return True


class MediaInput:
    """Reads a transport's socket in its place, with the descriptors of frames."""

    def __init__(
        self, transport: asyncio.Transport, media: ArrivedMedia, received: Callable[[bytes], None]
    ) -> None:
        """received: called with each part of the received data."""
        self._transport = transport
        self._media = media
        self._received = received
        self._socket = _twin(transport)
        self._loop = asyncio.get_running_loop()
        transport.pause_reading()
        self._loop.add_reader(self._socket, self._read)

    def close(self) -> None:
        """Read no more. Idempotent."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def _read(self) -> None:
        try:
            data = self._media.receive(self._socket, _READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            log.error("a link has ended: %s", error.strerror)
            data = b""
        if data:
            self._received(data)
        else:
            self.close()
            self._transport.close()


def _twin(transport: asyncio.Transport) -> socket.socket:
    """Return a duplicate of the transport's socket, for the system calls it has not."""
    twin: socket.socket = transport.get_extra_info("socket").dup()
    twin.setblocking(False)
    return twin
