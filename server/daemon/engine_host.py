"""The engine's process of a node: its life, and its link to the front (the process of the API
servers).

Owns the link and the engine's thread. The front started this process and decides when it ends. If
the front is gone or does not read, the process ends at once. No other process can use this engine,
and peers know how to fence a dead node.
"""

import asyncio
import logging
import os
import socket
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from tasuki.engine import messages as m
from tasuki.engine.apart import control as c
from tasuki.engine.apart.front_links import FrontLink, WorkerLinks, opened_door
from tasuki.engine.thread import EngineThread
from tasuki.server.daemon.running_engine import OBSERVED_INBOX, EngineSide
from tasuki.server.engine_client import parted
from tasuki.transfer.control.link_status import NodeProgress
from tasuki.utils.loops import LoopPulse
from tasuki.utils.program import is_expected, line_of
from tasuki.utils.signatures import Notice

from .startup import spare_collections

log = logging.getLogger(__name__)

MakeSide = Callable[["EngineHost"], EngineSide]


def host_engine(connection: socket.socket, make: MakeSide, door: str | None = None) -> int:
    """Run the engine's process. connection: socket to the front. make: loads and builds the engine;
    the front shows its typed errors. door: path of the Unix socket for front workers; None: there
    are none. Return the exit status."""
    link = FrontLink(connection)
    try:
        asyncio.run(_live(link, make, door))
    except Exception as error:
        if not is_expected(error):
            traceback.print_exc()
        link.send([c.StartFailed(line_of(error))])
        link.close()
        return 1
    return 0


async def _live(link: FrontLink, make: MakeSide, door: str | None) -> None:
    host = EngineHost(link)
    side = make(host)
    await host.start(side)
    if door is not None:
        host.open_door(door)
    spare_collections()
    link.send(
        [
            c.EngineStands(
                side.engine.max_request_tokens,
                side.engine.max_batch,
                side.engine.trials_address,
                side.handover_address,
                side.engine.sees_pictures,
            )
        ]
    )
    await host.handover_retires.wait()
    await side.retire()
    link.send([c.HandoverRetired()])
    await host.handover_ends.wait()
    await side.end_handover()
    link.send([c.HandoverOver()])
    await host.engine_ends.wait()
    await host.stop()
    await side.stop()
    await asyncio.to_thread(link.close)


class EngineHost:
    """The HandoverFront of an engine in a separate process. Build it inside a running event
    loop."""

    def __init__(self, link: FrontLink) -> None:
        self._link = link
        self._loop = asyncio.get_running_loop()
        self.handover_retires = asyncio.Event()
        self.handover_ends = asyncio.Event()
        self.engine_ends = asyncio.Event()
        self._pulse = LoopPulse(self._probe)
        self._turned: Notice | None = None
        self._headers: dict[m.RequestId, str] = {}
        self._side: EngineSide
        self._thread: EngineThread
        self._workers = WorkerLinks(self._receive, link.send, self._worker_gone)
        self._door: asyncio.Task[None] | None = None

    async def start(self, side: EngineSide) -> None:
        self._side = side
        self._thread = EngineThread(
            side.engine, self._deliver, self.lose, side.engine.watchdog_timeout
        )
        self._link.start(self._receive, _end_at_once)
        await asyncio.to_thread(self._thread.start)
        await side.start()

    def open_door(self, path: str) -> None:
        """Accept connections of front workers at the Unix socket `path` from now on."""
        self._door = self._loop.create_task(self._workers.let_in(opened_door(path)))

    def _worker_gone(self, number: int, left: tuple[m.RequestId, ...]) -> None:
        self._link.send([c.WorkerGone(number, left)])

    async def stop(self) -> None:
        if self._door is not None:
            self._door.cancel()
        await asyncio.to_thread(self._thread.stop)
        await asyncio.to_thread(self._workers.close)

    def post_observed(self, message: m.Inbox) -> None:
        if isinstance(message, OBSERVED_INBOX):
            self._link.send([message])
        self._thread.post(message)

    def lose(self, reason: str) -> None:
        self._link.send([c.EngineLost(reason)])

    def end(self, reason: str) -> None:
        """End this process at once, after the reason was sent to the front. Call it on any thread
        except the link's."""
        log.error("the engine's process ends, and all requests in flight: %s", reason)
        self._link.send([c.EngineEnds(reason)])
        self._link.close()
        os._exit(1)

    def progress(self) -> NodeProgress:
        return NodeProgress(self._thread.still_seconds, self._pulse.behind())

    def header(self, request: m.RequestId) -> str:
        return self._headers.get(request, "")

    def begin_transfer(self, transfer_id: m.TransferId, request: str, traceparent: str) -> None:
        self._link.send([c.TransferBegun(transfer_id, request, traceparent)])

    def _probe(self, answered: Notice) -> None:
        self._turned = answered
        self._link.send([c.FrontProbe()])

    def _deliver(self, messages: Sequence[m.Outbox]) -> None:
        """Send a step's messages to the front and its workers. Called on the engine's thread."""
        mine, others = parted(messages)
        shown: list[Any] = []
        if any(isinstance(message, m.StatsReply) for message in mine):
            shown.append(c.HandoverShown(self._side.status()))
        if mine:
            self._workers.split([*shown, *mine])
        if self._headers:
            for message in mine:
                if isinstance(message, m.Finished | m.Rejected):
                    self._headers.pop(message.request_id, None)
        for other in others:
            self._side.deliver(other)

    def _receive(self, messages: Sequence[Any]) -> None:
        """Handle messages sent by the front. Called on the link's thread."""
        for message in messages:
            match message:
                case c.RequestTraced(request_id, header):
                    self._headers[request_id] = header
                case c.FrontTurned():
                    if self._turned is not None:
                        self._turned()
                case c.RetireHandover():
                    self._loop.call_soon_threadsafe(self.handover_retires.set)
                case c.EndHandover():
                    self._loop.call_soon_threadsafe(self.handover_ends.set)
                case c.EndEngine():
                    self._loop.call_soon_threadsafe(self.engine_ends.set)
                case _:
                    self._thread.post(message)


def _end_at_once(reason: str) -> None:
    log.error("the engine's process ends, and all requests in flight: %s", reason)
    os._exit(1)
