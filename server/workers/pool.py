"""The front workers of a node: started, watched, started again, ended.

WorkerPool owns the workers' processes and the claims to their shared ports. Thread rule: the
registry's event loop. Order of calls: start, refuse_traffic, calls_over, stop. Invariants: a worker
that has ended unasked leaves the registry before another takes its place. A worker without answers
is ended. No worker outlives this process.

NodeWorkers holds a node's registry of front workers, their processes and their sockets.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tasuki.engine.apart.frame_protocol import FrameProtocol
from tasuki.engine.apart.front_links import WorkerGone
from tasuki.engine.apart.media_frames import ArrivedMedia
from tasuki.engine.messages.media import KnownBlocks
from tasuki.server.bind import PortClaim
from tasuki.server.config import ServerConfig
from tasuki.server.engine_client import EngineClient
from tasuki.utils.child_process import start_child
from tasuki.utils.program import PACKAGE

from . import messages as w
from .links import NodeSockets, frames_with, message_frame, worker_frame
from .registry import Header, Registry, WorkerSeat
from .worker import WorkerJob, run_worker

log = logging.getLogger(__name__)

_START_SECONDS = 120.0
_STOP_SECONDS = 10.0
_LOOK_SECONDS = 5.0
_LOOKS = 6
"""Number of unanswered Look messages before a worker is ended. Looks are counted rather than time:
a suspended machine has looked only once."""
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 10.0
_STEADY_SECONDS = 30.0
"""Lifetime in seconds of a steady worker. After its end the next one starts at once, without a
pause."""


class WorkerError(RuntimeError):
    """A front worker did not start; the message has the reason."""


class WorkerPool:
    def __init__(self, job: WorkerJob, count: int) -> None:
        """Set up the pool. job: job of every worker, except its number and its ports. count: number
        of workers."""
        self._job = job
        self._count = count
        self._claims: list[PortClaim] = []
        self._registry: Registry
        self._workers: dict[int, _WorkerProcess] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._numbers = iter(range(1, 1 << 31))
        self._shown: w.LeaveRotation | w.ComeBack = w.ComeBack()

    async def start(self, registry: Registry) -> tuple[str, str | None]:
        """Start the workers. Return the HOST:PORT of gRPC and of HTTP for clients, once all workers
        take calls. HTTP's is None without an HTTP server. Raises BindError, WorkerError."""
        self._registry = registry
        config = self._job.config
        try:
            bind = self._claimed("bind", config)
            http = self._claimed("http_bind", config) if config.http_bind else ""
            self._job = replace(self._job, config=replace(config, bind=bind, http_bind=http))
            await asyncio.gather(*(self._started() for _ in range(self._count)))
        except BaseException:
            await self.stop()
            raise
        loop = asyncio.get_running_loop()
        self._keepers = [loop.create_task(self._kept(worker)) for worker in self._workers.values()]
        return bind, http or None

    def leave_rotation(self) -> None:
        """Report this node as not ready, also from workers started later."""
        self._shown = w.LeaveRotation()
        self._tell(self._shown)

    def come_back(self) -> None:
        """Report this node as ready again, also from workers started later."""
        self._shown = w.ComeBack()
        self._tell(self._shown)

    def refuse_traffic(self) -> None:
        """Report this node as draining. From now on an ended worker is not replaced."""
        for keeper in self._keepers:
            keeper.cancel()
        self._tell(w.RefuseTraffic())

    def engine_lost(self, reason: str) -> None:
        self._tell(w.EngineDied(reason))

    async def calls_over(self) -> None:
        """Wait until no worker has a call in progress."""
        workers = self._standing()
        for worker in workers:
            worker.send([w.AwaitCalls()])
        await asyncio.gather(*(worker.calls_over.wait() for worker in workers))

    async def stop(self) -> None:
        """End the workers' servers first, then their processes. Calls still in progress are cut."""
        for keeper in self._keepers:
            keeper.cancel()
        # First wait for the keepers: a worker just starting must be gone.
        await asyncio.gather(*self._keepers, return_exceptions=True)
        self._tell(w.EndWorker())
        await asyncio.gather(*(worker.stop() for worker in self._workers.values()))
        for claim in self._claims:
            claim.close()

    def _tell(self, message: Any) -> None:
        for worker in self._standing():
            worker.send([message])

    def _standing(self) -> "list[_WorkerProcess]":
        return [worker for worker in self._workers.values() if worker.stands]

    def _claimed(self, field: str, config: ServerConfig) -> str:
        """Claim the address in the setting `field`, for all workers. Return its HOST:PORT with the
        selected port. Raises BindError."""
        claim = PortClaim(field, getattr(config, field), config.access)
        self._claims.append(claim)
        return claim.address

    async def _started(self) -> "_WorkerProcess":
        """Start one front worker. Raises WorkerError, and OSError if the system allows no more
        processes."""
        number = next(self._numbers)
        worker = _WorkerProcess(number, self._registry)
        self._workers[number] = worker
        try:
            await worker.start(replace(self._job, number=number))
        except BaseException:
            await worker.stop()
            del self._workers[number]
            raise
        worker.send([self._shown])
        return worker

    async def _kept(self, worker: "_WorkerProcess") -> None:
        """Start a new worker whenever `worker` or its successor ends. The pause before a start
        grows while workers keep failing."""
        loop = asyncio.get_running_loop()
        pause = 0.0
        while True:
            stood = loop.time()
            watch = loop.create_task(worker.watched())
            try:
                how = await worker.ended()
            finally:
                watch.cancel()
            del self._workers[worker.number]
            if loop.time() - stood > _STEADY_SECONDS:
                pause = 0.0
            log.error("a front worker %s: another is started", how)
            while True:
                await asyncio.sleep(pause)
                pause = min(max(2 * pause, _FIRST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
                try:
                    worker = await self._started()
                    break
                except (WorkerError, OSError) as error:
                    log.error("a front worker does not start: %s", error)


class WorkerLink(FrameProtocol):
    """The registry's end of the socket to a front worker."""

    def __init__(self, worker: "_WorkerProcess", known: KnownBlocks | None = None) -> None:
        """known: blocks of media of all workers; None: of this one alone."""
        media = ArrivedMedia(known)
        super().__init__("a front worker", frames_with(media), media)
        self._worker = worker

    def taken(self, messages: Sequence[Any]) -> None:
        for message in messages:
            self._worker.take(message)

    def ended(self, why: Exception | None) -> None:
        self._worker.link_ended()

    def send(self, messages: Sequence[Any]) -> None:
        match messages:
            case [message]:
                self.write(*message_frame(message))
            case _:
                self.write(worker_frame(messages))


class _WorkerProcess:
    def __init__(self, number: int, registry: Registry) -> None:
        self.number = number
        self.calls_over = asyncio.Event()
        self._registry = registry
        self._seat: WorkerSeat = registry.seat(number, self.send)
        self._stands: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = asyncio.Event()
        self._unanswered = 0
        self._link = WorkerLink(self, registry.media)
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, job: WorkerJob) -> None:
        """Start the worker's process. Return once the worker takes calls. Raises WorkerError."""
        self._process, ours, first = await start_child(
            f"{PACKAGE}.server.workers.worker_main", partial(run_worker, job)
        )
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self._link, sock=ours)
        self._link.write(first)
        try:
            await asyncio.wait_for(self._stands, _START_SECONDS)
        except TimeoutError:
            raise WorkerError(f"a front worker does not stand after {_START_SECONDS:g} s") from None

    @property
    def stands(self) -> bool:
        return self._seat.stood

    def send(self, messages: Sequence[Any]) -> None:
        if not self._left.is_set():
            self._link.send(messages)

    async def watched(self) -> None:
        """Send Look messages to the worker regularly. Kill it once it answers none any more,
        because its clients would wait for ever."""
        while self._unanswered < _LOOKS:
            self._unanswered += 1
            self.send([w.Look()])
            await asyncio.sleep(_LOOK_SECONDS)
        log.error("a front worker has answered none of %d looks and is killed", _LOOKS)
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.kill()

    async def ended(self) -> str:
        """Wait until the worker's process has ended unasked and the worker has left the registry.
        Return the cause as text."""
        await self._left.wait()
        await self._killed()
        assert self._process is not None
        status = self._process.returncode
        if status is not None and status < 0:
            return f"was ended by signal {-status}"
        return f"has ended with status {status}"

    async def stop(self) -> None:
        """End the worker's process. If the worker took calls, its servers end first."""
        if self._process is None:
            self._registry.left(self.number)
            return
        patience = _STOP_SECONDS if self.stands else 0.0
        with suppress(TimeoutError):
            await asyncio.wait_for(self._left.wait(), patience)
        await self._killed()

    async def _killed(self) -> None:
        assert self._process is not None
        try:
            await asyncio.wait_for(self._process.wait(), 1.0)
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    def take(self, message: Any) -> None:
        """Handle a message sent by the front worker."""
        match message:
            case w.WorkerStands():
                self._seat.stood = True
                if not self._stands.done():
                    self._stands.set_result(None)
            case w.WorkerFailed(reason):
                if not self._stands.done():
                    self._stands.set_exception(WorkerError(reason))
            case w.CallsOver():
                self.calls_over.set()
            case w.Awake(failures, pictures):
                self._unanswered = 0
                self._seat.failures = failures
                self._seat.pictures = pictures
            case _:
                self._seat.take(message)

    def link_ended(self) -> None:
        """Handle the end of the socket to the front worker."""
        if not self._stands.done():
            self._stands.set_exception(WorkerError("a front worker has ended before it stood"))
        self._left.set()
        # Wake the callers waiting for this worker's end.
        self.calls_over.set()
        self._registry.left(self.number)


@dataclass(frozen=True)
class NodeWorkers:
    """The front workers of a node, their registry and their sockets. registry: builds the registry
    from the node's engine client and Tracing.header. gone_from_engine: sets the function called for
    each worker when its link to the engine ends."""

    sockets: NodeSockets
    pool: WorkerPool
    registry: Callable[[EngineClient, Header], Registry]
    gone_from_engine: Callable[[WorkerGone], None]
