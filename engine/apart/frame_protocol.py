"""One end of a socket of frames, in an event loop.

Owns its transport and what has come of a frame that is not whole. Thread rule: the loop's.
Invariants: on_end is called once, and nothing is taken behind it; behind what is no frame nothing
is taken.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from .codec import BrokenFrame, FrameReader

log = logging.getLogger(__name__)


class FrameProtocol(asyncio.Protocol):
    def __init__(
        self,
        peer: str,
        reader: FrameReader,
        take: Callable[[Sequence[Any]], None],
        on_end: Callable[[Exception | None], None],
    ) -> None:
        """peer: what the other end is, for the log. take: a frame's messages. on_end: why the
        socket has ended: a BrokenFrame, the socket's own error, or None where either end closed
        it."""
        self._peer = peer
        self._reader = reader
        self._take = take
        self._on_end = on_end
        self._broken: BrokenFrame | None = None
        self._transport: asyncio.Transport | None = None

    def write(self, data: bytes | bytearray) -> None:
        """Goes nowhere while the socket is not there yet."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Once what still waits is sent."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for messages in self._reader.take(data):
                self._take(messages)
        except BrokenFrame as error:
            log.error("%s sent what is no frame: %s", self._peer, error)
            self._broken = error
            assert self._transport is not None
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_end(self._broken or exc)
