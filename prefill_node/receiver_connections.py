"""Connections of receivers to this prefill node: their names, their beats, the lease that beats
renew.

Owns connections. Knows no rooms: whoever holds some is told when a connection is over. Thread rule:
the event loop. Invariants: a connection lives as long as its heartbeat stream, its name cannot be
guessed and is never used again; a renewal counts from when its beat was sent, on this node's clock.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field

from ..proto import handover_pb2 as pb
from ..transfer.node_identity import NodeIdentity
from ..transfer.sender import Sender
from ..transfer.writer_life import WriterLife

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.01
_TRYING_SECONDS = 5.0
"""A receiver tries our metadata in a process of its own before it begins to beat."""


@dataclass
class _Connection:
    node: NodeIdentity
    heard: float
    writer: WriterLife
    asked: dict[int, float] = field(default_factory=dict)
    """Beats not answered yet, and when they were sent."""
    renewal: int = 0
    """The last one that was heard."""
    beating: bool = False


class ReceiverConnections:
    def __init__(
        self,
        epoch: bytes,
        sender: Sender,
        beat_seconds: float,
        silence_seconds: float,
        on_lost: Callable[[str], None],
        on_drained: Callable[[pb.DrainedPull], None],
        retry_seconds: float,
        settle_seconds: float,
    ) -> None:
        """on_lost: called with a connection's name once, before the sender lets go of it.
        on_drained: a renewal said it. retry_seconds, settle_seconds: the transport's."""
        self._prefix = f"{epoch.hex()}-"
        self._sender = sender
        self._beat_seconds = beat_seconds
        self._silence_seconds = silence_seconds
        self._on_lost = on_lost
        self._on_drained = on_drained
        self._retry_seconds = retry_seconds
        self._settle_seconds = settle_seconds
        self._connections: dict[str, _Connection] = {}
        self._issued = 0
        self._names: dict[bytes, list[str]] = {}
        """By the process that they lead to, its epoch: those whose endpoints may be open."""

    def __contains__(self, name: str) -> bool:
        return name in self._connections

    @property
    def nodes(self) -> list[str]:
        return [connection.node.name for connection in self._connections.values()]

    def writer(self, name: str) -> WriterLife | None:
        """The receiver as a writer of what is pulled from it; None where it is gone."""
        connection = self._connections.get(name)
        return None if connection is None else connection.writer

    async def add(self, node: NodeIdentity, lease_seconds: float) -> str:
        """The new connection's name. lease_seconds: the receiver's as a writer. Raises
        TransportError."""
        await self._end_others(node)
        self._issued += 1
        # Who knows the name may end the connection's rooms.
        name = f"{self._prefix}{self._issued}-{secrets.token_hex(16)}"
        self._names.setdefault(node.epoch, []).append(name)
        await asyncio.to_thread(self._sender.connect, name, node.transport_metadata, node.slabs)
        writer = WriterLife(node.process, lease_seconds, self._retry_seconds, self._settle_seconds)
        self._connections[name] = _Connection(node, time.monotonic(), writer)
        # A receiver that connects and never beats must not stay connected.
        loop = asyncio.get_running_loop()
        loop.call_later(self._silence_seconds + _TRYING_SECONDS, self._expect_beating, name)
        return name

    async def _end_others(self, node: NodeIdentity) -> None:
        """A node that connects anew has given up what it had. Transports share what leads to one
        process, and a broken part of it would be shared too."""
        names = self._names.pop(node.epoch, [])
        for name in names:
            self.drop(name)
        deadline = time.monotonic() + self._silence_seconds
        while any(map(self._sender.has_endpoint, names)) and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
        self._names = {
            epoch: names
            for epoch, names in self._names.items()
            if any(map(self._sender.has_endpoint, names))
        }

    def _expect_beating(self, name: str) -> None:
        connection = self._connections.get(name)
        if connection is not None and not connection.beating:
            self.drop(name)

    def may_beat(self, name: str) -> bool:
        """Whether the connection is known and has no heartbeat yet."""
        connection = self._connections.get(name)
        return connection is not None and not connection.beating

    async def beats(
        self, name: str, renewals: AsyncIterator[pb.Renewal]
    ) -> AsyncGenerator[pb.Beat, None]:
        """Beat until the receiver falls silent or hangs up; then the connection is over.

        REQUIRES: may_beat(name).
        """
        connection = self._connections[name]
        connection.beating = True
        connection.heard = time.monotonic()
        reader = asyncio.create_task(self._read(name, connection, renewals))
        sequence = 0
        try:
            while name in self and not reader.done():
                now = time.monotonic()
                if now - connection.heard > self._silence_seconds:
                    log.warning("receiver %s answers no beats", connection.node.name)
                    break
                sequence += 1
                connection.asked[sequence] = now
                connection.writer.answering()
                yield pb.Beat(sequence=sequence, heard=connection.renewal)
                await asyncio.wait({reader}, timeout=self._beat_seconds)
        finally:
            reader.cancel()
            self.drop(name)

    async def _read(
        self, name: str, connection: _Connection, renewals: AsyncIterator[pb.Renewal]
    ) -> None:
        async for renewal in renewals:
            connection.renewal = max(connection.renewal, renewal.sequence)
            for drained in renewal.drained:
                self._on_drained(drained)
            asked = connection.asked.pop(renewal.sequence, None)
            if asked is None:
                continue
            connection.heard = time.monotonic()
            self._sender.renew(name, asked)
            for sequence in [s for s in connection.asked if s < renewal.sequence]:
                del connection.asked[sequence]

    def drop(self, name: str) -> None:
        """Idempotent."""
        connection = self._connections.pop(name, None)
        if connection is None:
            return
        log.info("receiver %s is gone", connection.node.name)
        connection.writer.lose()
        self._on_lost(name)
        self._sender.disconnect(name)

    def drop_all(self) -> None:
        for name in list(self._connections):
            self.drop(name)
