"""Interfaces between the front (API servers) and the engine side of a node, in one process or in
two.

A front sees a RunningEngine; an engine's owner sees a Front; the hand-over's control sees a
HandoverFront. NearEngine has both sides in one process; engine_process.py and engine_host.py have
them in two.

NearEngine is an engine on a thread of its front's process. For the hand-over's control it is also
the front. It owns the engine's thread. Order of calls: hold, attach, start, stop, once each. Build
it inside the front's running event loop.
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
"""Types of messages from the hand-over's control to the engine also recorded by the front."""


class Front(Protocol):
    """The front of a node, as its engine's owner sees it. Methods belong to the event loop's
    thread, except deliver() and lose()."""

    tracing: Tracing

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    def deliver(self, messages: Sequence[m.Outbox]) -> None:
        """Pass on the messages of an engine's step to the front. Called on the engine's thread."""

    def take(self, messages: Sequence[Any]) -> None:
        """Handle the messages of an engine's step for the front."""

    def observe(self, message: ObservedMessage) -> None: ...
    def count_tokens(self, count: int) -> None:
        """Count the tokens the engine has sent to front workers."""

    def lose(self, reason: str) -> None:
        """Handle the death of the engine, or of a part it needs. Called on any thread."""


class RunningEngine(Protocol):
    def attach(self, front: Front) -> None:
        """Set the front of this engine. Called once, before start()."""

    def post(self, message: m.Inbox) -> None:
        """Send a message to the engine, from the front's event loop. Never waits."""

    async def start(self) -> None:
        """Start the engine. Return when it is ready to step, or has failed."""

    async def stop(self) -> None:
        """Stop the engine after the step in progress. Requests still in flight are dropped."""


class HandoverFront(Protocol):
    """The front as the hand-over's control sees it. Any thread; no method waits."""

    def post_observed(self, message: m.Inbox) -> None:
        """Send the message to the engine. If its type is in OBSERVED_INBOX, send it to the front's
        record too."""

    def lose(self, reason: str) -> None:
        """End every request in flight with `reason` and refuse new ones: this node cannot go on."""

    def progress(self) -> NodeProgress:
        """Return the delays of the engine's steps and of the front's event loop, in seconds. Call
        it from one thread, neither the engine's nor the front's."""

    def header(self, request: m.RequestId) -> str:
        """Return the traceparent of the request's span, as Tracing.header does."""

    def begin_transfer(self, transfer_id: m.TransferId, request: str, traceparent: str) -> None:
        """Begin the trace of a transfer, as Tracing.begin_transfer does. Call it before any message
        of the transfer reaches the engine, because the transfer's end must be reported later."""


class EngineSide(Protocol):
    """The engine side of a node: its part in the engine's process. One event loop's thread, except
    deliver(), called on the engine's thread, and status(), called on any."""

    @property
    def engine(self) -> Any:
        """Return the node's Engine."""

    @property
    def handover_address(self) -> str | None:
        """Return HOST:PORT of the separate server for decode nodes. REQUIRES: started."""

    def deliver(self, message: m.Outbox) -> None:
        """Handle a message of the engine for the hand-over's control."""

    def status(self) -> HandoverStatus: ...
    async def start(self) -> None: ...
    async def retire(self) -> None:
        """Withdraw this node from hand-overs, before the front drains: no other node learns of it
        or sends it new work."""

    async def end_handover(self) -> None:
        """End the transfers in flight. Abandon them after their timeout."""

    async def stop(self) -> None:
        """Stop all parts except the engine, in order. REQUIRES: the engine has ended."""


class NearEngine:
    """A RunningEngine on a thread of the front's process. It is the HandoverFront too. Give the
    engine at construction or by hold(), then call attach(), before any other method."""

    def __init__(self, engine: Engine | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._pulse = LoopPulse(self._loop.call_soon_threadsafe)
        self._thread: EngineThread
        self._front: Front
        if engine is not None:
            self.hold(engine)

    def hold(self, engine: Engine) -> None:
        """Set the engine. It may be built only after this object, because the engine needs a
        front."""
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

    def begin_transfer(self, transfer_id: m.TransferId, request: str, traceparent: str) -> None:
        begin = self._front.tracing.begin_transfer
        self._loop.call_soon_threadsafe(begin, transfer_id, request, traceparent)
