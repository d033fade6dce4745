"""Connections of receivers to this prefill node: their names, their beats, the lease that beats
renew.

Owns connections. Knows no rooms: their holder is called when a connection is over. Thread rule:
the hand-over's event loop, but for peers(). Invariants: a connection lives as long as its heartbeat
stream, its name cannot be guessed and is never used again; a renewal counts from when its beat was
sent, on this node's clock.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from dataclasses import dataclass, field
from math import inf

from tasuki.proto import handover_pb2 as pb
from tasuki.transfer.fencing.writer_liveness import WriterLife
from tasuki.transfer.liveness.node_progress import (
    NodeProgress,
    progress_from_wire,
    progress_to_wire,
)
from tasuki.transfer.liveness.silence import Silence
from tasuki.transfer.node_identity import NodeIdentity
from tasuki.transfer.sending.sender import Sender, connect_within, disconnected_within

log = logging.getLogger(__name__)

_CONNECT_SECONDS = 5.0
_TRYING_SECONDS = 5.0
"""A receiver tries our metadata in a process of its own before it begins to beat."""
_LOAD_SECONDS = 1.0
"""Between two beats with the load; what a receiver sends meanwhile it counts itself."""
_PEERS_TOLD = 64
_NAME_TOLD = 64


@dataclass
class _Connection:
    node: NodeIdentity
    silence: Silence
    writer: WriterLife
    asked: dict[int, float] = field(default_factory=dict)
    """Beats not answered yet, and when they were sent."""
    renewal: int = 0
    """The last one that came."""
    beating: bool = False
    progress: NodeProgress | None = None
    """From the last renewal that had one."""


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
        progress: Callable[[], NodeProgress] = NodeProgress,
        load: Callable[[str], pb.Load | None] = lambda _: None,
        leaves: Callable[[], bool] = lambda: False,
    ) -> None:
        """on_lost: called with a connection's name once, before the sender lets go of it.
        on_drained: a renewal said it. retry_seconds, settle_seconds: the transport's. progress:
        this node's, sent with each beat. load: this node's, for a connection's receiver, sent about
        once a second; None while it is not known. leaves: whether this node ends and has states to
        leave."""
        self._leaves = leaves
        self._progress = progress
        self._load = load
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

    @property
    def names(self) -> Collection[str]:
        return self._connections.keys()

    def peers(self) -> dict[str, NodeProgress]:
        """What receivers report of themselves, by name; of those that share one what is worst. From
        any thread, and no more than an operator can look at."""
        reported: dict[str, NodeProgress] = {}
        for connection in list(self._connections.values())[:_PEERS_TOLD]:
            if (progress := connection.progress) is not None:
                name = connection.node.name[:_NAME_TOLD]
                known = reported.get(name, progress)
                reported[name] = NodeProgress(
                    max(known.engine_seconds, progress.engine_seconds),
                    max(known.front_seconds, progress.front_seconds),
                )
        return reported

    def silence(self, name: str) -> Silence:
        """REQUIRES: may_beat(name)."""
        return self._connections[name].silence

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
        await connect_within(_CONNECT_SECONDS, self._sender, name, node)
        writer = WriterLife(node.process, lease_seconds, self._retry_seconds, self._settle_seconds)
        silence = Silence(
            self._silence_seconds, time.monotonic(), self._beat_seconds, grace=_TRYING_SECONDS
        )
        self._connections[name] = _Connection(node, silence, writer)
        self._expect_beating(name)
        return name

    async def _end_others(self, node: NodeIdentity) -> None:
        """A node that connects anew has given up what it had."""
        names = self._names.pop(node.epoch, [])
        for name in names:
            self.drop(name)
        await disconnected_within(self._silence_seconds, self._sender, names)
        self._names = {
            epoch: names
            for epoch, names in self._names.items()
            if any(map(self._sender.has_endpoint, names))
        }

    def _expect_beating(self, name: str) -> None:
        """A receiver that connects and never beats must not stay connected."""
        connection = self._connections.get(name)
        if connection is None or connection.beating:
            return
        if connection.silence.tick(time.monotonic()):
            self.drop(name)
        else:
            loop = asyncio.get_running_loop()
            loop.call_later(self._beat_seconds, self._expect_beating, name)

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
        connection.silence.received(time.monotonic())
        reader = asyncio.create_task(self._read(name, connection, renewals))
        sequence = 0
        load_sent_at = -inf
        try:
            while name in self and not reader.done():
                sequence += 1
                now = time.monotonic()
                connection.asked[sequence] = now
                connection.writer.answering()
                load = self._load(name) if now - load_sent_at >= _LOAD_SECONDS else None
                load_sent_at = load_sent_at if load is None else now
                yield pb.Beat(
                    sequence=sequence,
                    received=connection.renewal,
                    progress=progress_to_wire(self._progress()),
                    load=load,
                    leaves=self._leaves(),
                )
                await asyncio.wait({reader}, timeout=self._beat_seconds)
                if connection.silence.tick(time.monotonic()):
                    log.warning("receiver %s answers no beats", connection.node.name)
                    break
        finally:
            reader.cancel()
            self.drop(name)
            if reader.done() and not reader.cancelled() and reader.exception() is not None:
                log.warning("receiver %s: %s", connection.node.name, reader.exception())

    async def _read(
        self, name: str, connection: _Connection, renewals: AsyncIterator[pb.Renewal]
    ) -> None:
        async for renewal in renewals:
            connection.renewal = max(connection.renewal, renewal.sequence)
            for drained in renewal.drained:
                self._on_drained(drained)
            if renewal.HasField("progress"):
                connection.progress = progress_from_wire(renewal.progress)
            asked = connection.asked.pop(renewal.sequence, None)
            if asked is None:
                continue
            connection.silence.received(time.monotonic())
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
