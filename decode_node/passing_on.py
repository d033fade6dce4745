"""Requests for the states of ending prefill nodes, to pass each state on to a staying prefill node.

Asks for one state at a time. Owns the asking tasks: WORKERS for each connection to a leaving node.
Owns also the list of states given to the engine to pass on. Thread rule: the hand-over's event
loop.

Invariants: at most WORKERS tasks ask one connection at a time, each with one state in hand. Each
question reports the outcome of the previous state, unless the connection is lost. Every wait for an
answer is bounded. If no prefill node stays, no state is asked for.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from itertools import count

import grpc

from tasuki.decode_node.prefill_connection import PrefillConnection
from tasuki.decode_node.prefill_links import PrefillLink
from tasuki.engine import messages as m
from tasuki.engine.messages import transfer_proto as wire
from tasuki.proto import handover_pb2 as pb
from tasuki.transfer.errors import PeerInvalid

log = logging.getLogger(__name__)

WORKERS = 2
_ASK_SECONDS = 5.0
_AGAIN_SECONDS = 0.25
"""Pause in seconds before the next question, after a leaving node had no state to give now."""
_FETCH_SECONDS = 5.0
_PASS_ON_SECONDS = 30.0
"""Limit in seconds for passing on one state: its fetch, and its transfer to the drain target. It is
longer than the time given by an ending node."""


class PassingOn:
    def __init__(
        self,
        post: m.Post,
        has_drain_target: Callable[[], bool],
        is_held: Callable[[m.GivenState], bool],
        on_idle: Callable[[], None],
    ) -> None:
        """post: sends a message to the engine. has_drain_target: returns True if a prefill node
        stays. is_held: returns True if a staying node is known to hold the state. on_idle: called
        when a connection is no longer asked for states."""
        self._post = post
        self._has_drain_target = has_drain_target
        self._is_held = is_held
        self._on_idle = on_idle
        self._queries = count(1)
        self._asked: dict[int, asyncio.Future[m.StatePassedOn]] = {}
        self._tasks: dict[asyncio.Task[None], PrefillConnection] = {}

    @property
    def connections(self) -> Iterable[PrefillConnection]:
        """Return the connections to leaving nodes being asked for states."""
        return self._tasks.values()

    def leaves(self, link: PrefillLink, connection: PrefillConnection) -> None:
        """Begin to ask the connection's node for its states, because it ends. REQUIRES: called once
        for each connection."""
        for number in range(WORKERS):
            asking = self._ask_all(link, connection)
            task = asyncio.get_running_loop().create_task(asking, name=f"heirs-{number}")
            self._tasks[task] = connection
            task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("states of a prefill node that ends were not passed on", exc_info=error)
        self._on_idle()

    def passed_on(self, message: m.StatePassedOn) -> None:
        """Handle the engine's report about passing on a state; drop it if no task waits for the
        report."""
        asked = self._asked.pop(message.query_id, None)
        if asked is not None and not asked.done():
            asked.set_result(message)

    async def stop(self, patience: float) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=patience)

    async def _ask_all(self, link: PrefillLink, connection: PrefillConnection) -> None:
        done: pb.TakenOver | None = None
        while connection.alive:
            declines = not self._has_drain_target()
            request = pb.TakeOverRequest(connection_id=connection.id, done=done, declines=declines)
            try:
                answer = await connection.stub.TakeOver(request, timeout=_ASK_SECONDS)
                given = wire.left_state_from_wire(answer)
            except (grpc.aio.AioRpcError, grpc.aio.UsageError, PeerInvalid) as error:
                log.info("prefill node %s leaves nothing more: %s", link.target, error)
                return
            if answer.over or declines:
                return
            done = None
            if given is None:
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                passed = await self._passed_on(given, link.target, connection)
                done = wire.taken_over(given.number, passed)

    async def _passed_on(
        self, given: m.GivenState, holder: str, connection: PrefillConnection
    ) -> m.StatePassedOn:
        query = next(self._queries)
        if not connection.takes(given.prompt):
            return m.StatePassedOn(query, m.DrainTargetOutcome.DECLINED)
        if self._is_held(given):
            return m.StatePassedOn(query, m.DrainTargetOutcome.HELD)
        asked: asyncio.Future[m.StatePassedOn] = asyncio.get_running_loop().create_future()
        self._asked[query] = asked
        self._post(m.PassOn(query, given, holder, _FETCH_SECONDS))
        try:
            async with asyncio.timeout(_PASS_ON_SECONDS):
                return await asked
        except TimeoutError:
            return m.StatePassedOn(query, m.DrainTargetOutcome.CUT)
        finally:
            self._asked.pop(query, None)
