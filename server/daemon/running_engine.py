"""Interfaces between the two sides of a node, in one process or in two.

A front sees a RunningEngine; an engine's owner sees a Front; the hand-over's control sees a
HandoverFront. NearEngine has both in one process, engine_process.py and engine_host.py in two.

NearEngine: An engine on a thread of its front's process, and that front as the hand-over's control
sees it. Owns the engine's thread. Life: hold, attach, start, stop, once each. Build it inside a
running event loop, which is the front's.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from tasuki.dashboard.observed import ObservedMessage
from tasuki.engine import messages as m
from tasuki.engine.engine import Engine
from tasuki.engine.thread import EngineThread
from tasuki.server.traces import Tracing
from tasuki.transfer.control.link_status import HandoverStatus, NodeProgress
from tasuki.utils.loops import LoopPulse

OBSERVED_INBOX = (
    m.HandoverFailed,
    m.WriterFenced,
    m.PeersChanged,
    m.PullCommitted,
    m.PullLost,
    m.PullFenced,
)
"""What the hand-over's control posts to the engine, and the front's record keeps."""


class Front(Protocol):
    """Methods belong to the event loop's thread but for deliver() and lose()."""

    tracing: Tracing

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    def deliver(self, messages: Sequence[m.Outbox]) -> None:
        """What a step made, from the engine's thread."""

    def take(self, messages: Sequence[Any]) -> None:
        """What of it is a front's."""

    def observe(self, message: ObservedMessage) -> None: ...
    def count_tokens(self, count: int) -> None:
        """So many went to front workers."""

    def lose(self, reason: str) -> None:
        """The engine, or what it needs, has died. From any thread."""


class RunningEngine(Protocol):
    def attach(self, front: Front) -> None:
        """Once, before start()."""

    def post(self, message: m.Inbox) -> None:
        """From the front's event loop; never waits."""

    async def start(self) -> None:
        """Returns when the engine is ready to step, or has failed."""

    async def stop(self) -> None:
        """After the step in progress; requests still alive are dropped."""


class HandoverFront(Protocol):
    """From any thread; nothing waits."""

    def post_observed(self, message: m.Inbox) -> None:
        """To the engine, and where it belongs there, to the front's record."""

    def lose(self, reason: str) -> None:
        """End every request in flight with `reason` and refuse new ones: this node cannot go on."""

    def progress(self) -> NodeProgress:
        """How many seconds the engine and the front's event loop are behind. From one thread that
        is neither's."""

    def header(self, request: m.RequestId) -> str:
        """As Tracing.header."""

    def begin_room(self, room: m.RoomId, request: str, traceparent: str) -> None:
        """As Tracing.begin_room: before anything of the room reaches the engine, so before its end
        is reported."""


class EngineSide(Protocol):
    """What of a node is in its engine's process. One event loop's thread, but for deliver(), which
    is called from the engine's, and status(), from any."""

    @property
    def engine(self) -> Any:
        """The Engine."""

    @property
    def handover_address(self) -> str | None:
        """HOST:PORT of a server for decode nodes alone. REQUIRES: started."""

    def deliver(self, message: m.Outbox) -> None:
        """Take a message of the engine for the hand-over's control."""

    def status(self) -> HandoverStatus: ...
    async def start(self) -> None: ...
    async def retire(self) -> None:
        """Before the front drains: no other node learns of this one any more, or asks it for
        more."""

    async def end_handover(self) -> None:
        """Rooms in flight end within their patience or are given up."""

    async def stop(self) -> None:
        """The rest, in order. REQUIRES: the engine has ended."""


class NearEngine:
    """As RunningEngine and as HandoverFront. Nothing is called before hold() and attach()."""

    def __init__(self, engine: Engine | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._pulse = LoopPulse(self._loop.call_soon_threadsafe)
        self._thread: EngineThread
        self._front: Front
        if engine is not None:
            self.hold(engine)

    def hold(self, engine: Engine) -> None:
        """Where the engine is built over what needs this as its front."""
        self._thread = EngineThread(
            engine,
            lambda messages: self._front.deliver(messages),
            lambda reason: self._front.lose(reason),
            engine.watchdog_timeout,
        )
        self.post = self._thread.post

    def attach(self, front: Front) -> None:
        self._front = front

    def post_observed(self, message: m.Inbox) -> None:
        if isinstance(message, OBSERVED_INBOX):
            self._loop.call_soon_threadsafe(self._front.observe, message)
        self._thread.post(message)

    async def start(self) -> None:
        await asyncio.to_thread(self._thread.start)

    async def stop(self) -> None:
        await asyncio.to_thread(self._thread.stop)

    def lose(self, reason: str) -> None:
        self._front.lose(reason)

    def progress(self) -> NodeProgress:
        return NodeProgress(self._thread.still_seconds, self._pulse.behind())

    def header(self, request: m.RequestId) -> str:
        return self._front.tracing.header(request)

    def begin_room(self, room: m.RoomId, request: str, traceparent: str) -> None:
        begin = self._front.tracing.begin_room
        self._loop.call_soon_threadsafe(begin, room, request, traceparent)
