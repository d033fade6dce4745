"""End of a daemon: requests to stop it, and the time to migrate states to its drain targets.

StopRequest owns the process's signal handlers while a StopRequest is entered. One event loop's
thread.

TimeForDrainTargets bounds the time for migrating a draining node's states to prefill nodes, its
drain targets. One event loop's thread. Invariants: the time begins with the drain, while requests
in flight go on. It ends within the drain's timeout, and at most alone_seconds() after the last of
these requests.
"""

import asyncio
import logging
import os
import signal

from tasuki.engine import messages as m
from tasuki.server.drain import Rotation
from tasuki.server.engine_client import EngineClient
from tasuki.server.errors import RequestAborted, RequestRejected
from tasuki.utils.system import report_stopping

log = logging.getLogger(__name__)

_STDIN = 0


class StopRequest:
    """The requests to stop a daemon. Enter it with `async with` around the daemon's life. The first
    SIGTERM or SIGINT requests a drain. A second signal skips the grace before the drain, if there
    is one. The next signal exits at once."""

    def __init__(self, *, exit_with_parent: bool = False, rotation: Rotation | None = None) -> None:
        """Set up the object; entering it sets the signal handlers. exit_with_parent: the end of
        stdin requests a drain too, so no child outlives its launcher. rotation: a second signal
        skips its grace (time before requests are refused)."""
        self._exit_with_parent = exit_with_parent
        self._rotation = rotation or Rotation()
        self._signalled = False
        self._asked = asyncio.Event()

    async def __aenter__(self) -> "StopRequest":
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        if self._exit_with_parent:
            loop.add_reader(_STDIN, self._on_stdin)
        return self

    async def __aexit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        if self._exit_with_parent:
            loop.remove_reader(_STDIN)

    async def wait(self) -> None:
        await self._asked.wait()

    def ask(self) -> None:
        self._asked.set()

    def _on_signal(self, number: int) -> None:
        if self._signalled and self._rotation.hurry():
            return
        # Also during a requested change of the role, because the new role would outlive the signal.
        if self._asked.is_set():
            os._exit(128 + number)
        self._signalled = True
        report_stopping("drains")
        self.ask()

    def _on_stdin(self) -> None:
        if not os.read(_STDIN, 4096):
            asyncio.get_running_loop().remove_reader(_STDIN)
            self.ask()


MOST_SECONDS = 10.0
_PART_OF_DRAIN = 3
_REPORT_SECONDS = 1.0
"""Seconds for the engine's report after the migration time is over."""


def alone_seconds(drain_timeout: float) -> float:
    """Return the seconds for migrating states after the last request in flight. They are a third of
    drain_timeout, at most MOST_SECONDS."""
    return min(MOST_SECONDS, drain_timeout / _PART_OF_DRAIN)


class TimeForDrainTargets:
    """The limited time for migrating states to drain targets. It begins at construction, on the
    event loop; end() ends it."""

    def __init__(self, engine: EngineClient, drain_timeout: float) -> None:
        """Begin the migration of states. drain_timeout: timeout of the drain in seconds, from
        now."""
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + drain_timeout
        self._alone = alone_seconds(drain_timeout)
        self._left = self._loop.create_task(engine.leave_to_drain_targets(), name="heirs")

    async def end(self) -> None:
        """Wait until the migration has ended or its time is over, and log it. Call it when the
        requests in flight have ended or were cut."""
        began = self._loop.time()
        await self._wait(min(self._alone, self._until - began))
        if not self._left.done():
            self._engine.end_leaving()
            await self._wait(_REPORT_SECONDS)
        if not self._left.done():
            self._left.cancel()
            log.warning("the engine does not say what it left to prefill nodes")
            return
        try:
            _log(self._left.result(), self._loop.time() - began)
        except (RequestRejected, RequestAborted) as error:
            log.warning("nothing more is left to prefill nodes: %s", error)

    async def _wait(self, seconds: float) -> None:
        await asyncio.wait([self._left], timeout=max(0.0, seconds))


def _log(left: m.LeftToDrainTargets, seconds: float) -> None:
    if not (left.states or left.untried):
        return
    outcomes = {outcome.value: count for outcome, count in left.states.items()}
    fields = {
        **outcomes,
        "tokens": left.tokens,
        "bytes": left.bytes,
        "untried": left.untried,
        "alone_seconds": round(seconds, 3),
    }
    taken = left.states.get(m.DrainTargetOutcome.TAKEN, 0)
    log.info("prefill nodes took %d states of %d tokens", taken, left.tokens, extra=fields)
