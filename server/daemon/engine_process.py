"""The front's end of an engine in a separate process, and the life of such a front.

EngineProcess owns the engine's process and the socket to it. Thread rule: the front's event loop.
Order of calls: launch, stands, attach, start, retire_handover, end_handover, stop. Invariants: the
engine's process does not outlive this one. Its death reaches the front at once, as a typed error.
The death ends every request in flight, and every wait in stands(), retire_handover() or
end_handover().

serve_apart() runs startup, main loop and drain.
"""

import asyncio
import logging
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tasuki.engine import messages as m
from tasuki.engine.apart import control as c
from tasuki.engine.apart.frame_protocol import FrameProtocol
from tasuki.engine.apart.frames import BrokenFrame, FrameReader, submit_frame
from tasuki.engine.apart.front_links import WorkerGone
from tasuki.server.config import ServerConfig
from tasuki.server.role_change import RoleChange
from tasuki.transfer.control.link_status import HandoverStatus
from tasuki.utils.child_process import Job, start_child
from tasuki.utils.program import PACKAGE
from tasuki.utils.signatures import Notice

from .node import Node
from .running_engine import OBSERVED_INBOX, Front
from .shutdown import StopRequest
from .startup import announce_ready, spare_collections

log = logging.getLogger(__name__)

# From the end of its socket to the end of the process: callers wait for the reason meanwhile.
LAST_SECONDS = 1.0
# Limit for the step in progress, and for posts of the data plane.
_STOP_SECONDS = 60.0
# Rooms, pulls and links have their own timeouts, with a smaller sum.
_HANDOVER_SECONDS = 90.0


class EngineProcessError(RuntimeError):
    """The engine's process did not start, or has ended. The message has the reason."""


class EngineLink(FrameProtocol):
    """The front's end of the socket to the engine's process."""

    def __init__(self, engine: "EngineProcess") -> None:
        super().__init__("the engine's process", FrameReader())
        self._engine = engine

    def taken(self, messages: Sequence[Any]) -> None:
        self._engine.take(messages)

    def ended(self, why: Exception | None) -> None:
        self._engine.link_ended(why)


class EngineProcess:
    """A RunningEngine in a separate process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._link = EngineLink(self)
        self._stands: asyncio.Future[c.EngineStands] = self._loop.create_future()
        self._handover_retired: asyncio.Future[None] = self._loop.create_future()
        self._handover_over: asyncio.Future[None] = self._loop.create_future()
        self._status = HandoverStatus()
        self._front: Front | None = None
        self._early: list[Any] = []
        """Messages from the engine's process received before attach()."""
        self._ending = False
        self._last_words: str | None = None
        self._end_seen: asyncio.Task[None] | None = None
        self._on_loss: Notice = lambda: None
        self._on_worker_gone: WorkerGone = lambda *_: None
        self.reason: str | None = None
        """The reason if the engine's process has ended unasked. None while it lives, or if it was
        asked to end."""

    @classmethod
    async def launch(cls, job: Job) -> "EngineProcess":
        """Start the engine's process and return its EngineProcess, before the engine is ready. job:
        the process's main function."""
        process, ours, first = await start_child(f"{PACKAGE}.server.daemon.engine_main", job)
        engine = cls(process)
        await engine._loop.create_unix_connection(lambda: engine._link, sock=ours)
        engine._link.write(first)
        return engine

    @property
    def pid(self) -> int:
        return self._process.pid

    async def stands(self) -> c.EngineStands:
        """Wait until the engine is ready, and return its description. Raises EngineProcessError."""
        return await asyncio.shield(self._stands)

    def on_loss(self, call: Notice) -> None:
        """Set the function called once the engine's process, once ready, has ended unasked. Call it
        now if the process has ended already."""
        self._on_loss = call
        if self.reason is not None:
            call()

    def on_worker_gone(self, call: WorkerGone) -> None:
        """Set the function called once a front worker's link to the engine has ended. Its arguments
        are the worker's number and the worker's requests still in the engine."""
        self._on_worker_gone = call

    def status(self) -> HandoverStatus:
        """Return the hand-over's status, as sent with the last StatsReply, if any."""
        return self._status

    def attach(self, front: Front) -> None:
        self._front = front
        self._hand_on(front, self._early)
        self._early = []
        if self.reason is not None:
            front.lose(self.reason)

    async def start(self) -> None:
        await self.stands()

    def post(self, message: m.Inbox) -> None:
        messages: list[Any] = [message]
        if isinstance(message, m.Submit) and self._front is not None:
            header = self._front.tracing.header(message.request_id)
            if header:
                messages.insert(0, c.RequestTraced(message.request_id, header))
        try:
            self._send(messages)
        except Exception as error:
            # One bad message ends one request, as in the engine's loop.
            log.exception("a message was dropped: %s", type(message).__name__)
            if isinstance(message, m.Submit) and self._front is not None:
                failure = m.RequestError(m.ErrorKind.INTERNAL, f"the engine refused it: {error!r}")
                rejected = [m.Rejected(name, failure) for name in message.answer_ids]
                self._loop.call_soon(self._front.take, rejected)

    async def retire_handover(self) -> None:
        """Run EngineSide.retire in the engine's process to its end or a timeout. Call it before the
        front drains."""
        await self._answered(c.RetireHandover(), self._handover_retired)

    async def end_handover(self) -> None:
        """Run EngineSide.end_handover in the engine's process to its end or a timeout. REQUIRES:
        retire_handover()."""
        await self._answered(c.EndHandover(), self._handover_over)

    async def _answered(self, asked: c.FrontControl, answer: "asyncio.Future[None]") -> None:
        self._send([asked])
        try:
            await asyncio.wait_for(asyncio.shield(answer), _HANDOVER_SECONDS)
        except TimeoutError:
            log.warning("no end in order of the hand-over within %s s", _HANDOVER_SECONDS)

    async def stop(self) -> None:
        if self.reason is None:
            self._send([c.EndEngine()])
        self._ending = True
        try:
            await asyncio.wait_for(self._process.wait(), _STOP_SECONDS)
        except TimeoutError:
            log.warning("the engine's process still runs after %s s: killed", _STOP_SECONDS)
            self._kill()
            await self._process.wait()
        self._link.close()

    def _send(self, messages: Sequence[Any]) -> None:
        if self.reason is None:
            self._link.write(*submit_frame(messages))

    def take(self, messages: Sequence[Any]) -> None:
        """Handle the messages in one frame from the engine's process."""
        others: list[Any] = []
        for message in messages:
            match message:
                case c.EngineStands():
                    self._stands.set_result(message)
                case c.StartFailed(reason) if not self._stands.done():
                    self._stands.set_exception(EngineProcessError(reason))
                case c.EngineEnds(reason):
                    self._last_words = reason
                case c.HandoverShown(status):
                    self._status = status
                case c.HandoverRetired():
                    self._handover_retired.set_result(None)
                case c.HandoverOver():
                    self._handover_over.set_result(None)
                case c.WorkerGone(number, left):
                    # Earlier messages go first.
                    self._forward(others)
                    others = []
                    self._on_worker_gone(number, left)
                case c.FrontProbe():
                    self._send([c.FrontTurned()])
                case _:
                    others.append(message)
        self._forward(others)

    def _forward(self, messages: Sequence[Any]) -> None:
        if self._front is None:
            self._early += messages
        else:
            self._hand_on(self._front, messages)

    @staticmethod
    def _hand_on(front: Front, messages: Sequence[Any]) -> None:
        """Pass messages of the engine to the front. If an observer fails on one message, the others
        still arrive."""
        mine: list[Any] = []
        for message in messages:
            try:
                match message:
                    case c.EngineLost(reason):
                        front.lose(reason)
                    case c.TransferBegun(transfer_id, request, traceparent):
                        front.tracing.begin_transfer(transfer_id, request, traceparent)
                    case c.TokensMade(count):
                        front.count_tokens(count)
                    case _ if isinstance(message, OBSERVED_INBOX):
                        front.observe(message)
                    case _:
                        mine.append(message)
            except Exception:
                log.exception("what observes messages broke: %s", type(message).__name__)
        if mine:
            front.take(mine)

    def link_ended(self, why: Exception | None) -> None:
        """Handle the end of the socket to the engine's process: the process has ended, or can no
        longer be reached. Ignored once stop() has begun. why: the socket's error, if any."""
        if self._ending:
            return  # stop() waits for it.
        self._end_seen = self._loop.create_task(self._follow_to_its_end(why))

    async def _follow_to_its_end(self, why: Exception | None) -> None:
        try:
            await asyncio.wait_for(self._process.wait(), LAST_SECONDS)
        except TimeoutError:
            self._kill()
            await self._process.wait()
        reason = f"the engine's process {self._how_it_ended(why)}; restart this node"
        self.reason = reason
        if not self._stands.done():
            self._stands.set_exception(EngineProcessError(reason))
        if self._stands.exception() is not None:
            return
        for waited_for in (self._handover_retired, self._handover_over):
            if not waited_for.done():
                waited_for.set_result(None)
        log.error("%s", reason)
        if self._front is not None:
            self._front.lose(reason)
        self._on_loss()

    def _kill(self) -> None:
        # The process may end at the very end of its timeout.
        with suppress(ProcessLookupError):
            self._process.kill()

    def _how_it_ended(self, why: Exception | None) -> str:
        status = self._process.returncode
        if self._last_words is not None:
            return f"has ended: {self._last_words}"
        if isinstance(why, BrokenFrame):
            return f"sent what is no frame ({why})"
        if status is not None and status < 0:
            return f"was ended by {signal.Signals(-status).name}"
        return f"has ended with status {status}"


async def serve_apart(
    engine: EngineProcess,
    node: Node,
    server_config: ServerConfig,
    role_change: RoleChange | None = None,
) -> None:
    """Run the node's startup, main loop and drain. role_change: role changes are accepted once the
    node takes calls. REQUIRES: engine.stands() has returned; the node is attached to it. Raises
    EngineProcessError if the engine's process has ended unasked, once all clients have their
    error."""
    async with StopRequest(
        exit_with_parent=server_config.exit_with_parent, rotation=node.engine.rotation
    ) as stop:
        engine.on_loss(stop.ask)
        address = await node.startup()
        if role_change is not None:
            role_change.offer(address, node.http_address, stop.ask)
        spare_collections()
        announce_ready(address, node.http_address, (await engine.stands()).handover_address)
        await stop.wait()
        await engine.retire_handover()
        await node.refuse_and_drain()
        await engine.end_handover()
        await node.stop()
    if engine.reason is not None:
        raise EngineProcessError(engine.reason)
