"""An engine on a thread of its front's process, and that front as the hand-over's control sees it.

Owns the engine's thread. Life: hold, attach, start, stop, once each. Build it inside a running
event loop, which is the front's.
"""

import asyncio

from tasuki.engine import messages as m
from tasuki.engine.engine import Engine
from tasuki.engine.thread import EngineThread
from tasuki.server.daemon.running_engine import OBSERVED_INBOX, Front
from tasuki.transfer.liveness.link_status import NodeProgress
from tasuki.utils.loops.loop_pulse import LoopPulse


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
