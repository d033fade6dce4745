"""What every daemon with a client side shares: engine thread, its client, services, server.

Does not know roles or hand-overs. One event loop's thread; the engine has its own. Life: startup,
then whatever the daemon waits for, then shutdown, once each.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from ..engine.engine import Engine
from ..engine.messages import Inbox, Outbox
from ..engine.thread import EngineThread
from .config import FrontConfig
from .engine_client import EngineClient
from .server import Server, Service, start_server

log = logging.getLogger(__name__)

# What answers already made may take to reach their clients once the engine is empty.
_LAST_WRITES_SECONDS = 1.0


class Node:
    """Owns the engine thread and the server. Build it inside a running event loop."""

    def __init__(
        self,
        engine: Engine,
        config: FrontConfig,
        services: Callable[[EngineClient], Sequence[Service]],
        handover: Callable[[Outbox], None] | None = None,
    ) -> None:
        """services: what this role serves over its engine. handover: takes the engine's hand-over
        messages, on the engine's thread."""
        self._config = config
        self._loop = asyncio.get_running_loop()
        self.engine = EngineClient(self.post, self._loop, handover)
        self._thread = EngineThread(engine, self.engine.deliver, self._engine_lost)
        self._services = services(self.engine)
        self._server: Server | None = None

    def _engine_lost(self, reason: str) -> None:
        self._loop.call_soon_threadsafe(self.engine.engine_lost, reason)

    def post(self, message: Inbox) -> None:
        """To the engine, from any thread."""
        self._thread.post(message)

    async def startup(self, more: Sequence[Service] = ()) -> str:
        """Start the engine, then the server with `more` services beside the front's. Returns
        HOST:PORT."""
        self._server = await start_server(
            self._config.bind,
            [*self._services, *more],
            allow_insecure=self._config.allow_insecure,
        )
        self._thread.start()
        return self._server.address

    async def shutdown(self) -> None:
        """refuse_and_drain(), then stop()."""
        await self.refuse_and_drain()
        await self.stop()

    async def refuse_and_drain(self) -> None:
        """Say NOT_SERVING, let requests in flight end within drain_timeout."""
        if self._server is None:
            return
        await self._server.refuse_traffic()
        try:
            await asyncio.wait_for(self.engine.drain(), self._config.drain_timeout)
        except TimeoutError:
            log.warning("requests still in flight after %s s are cut", self._config.drain_timeout)

    async def stop(self) -> None:
        """End the server, then the engine. What is still in flight is cut."""
        if self._server is not None:
            await self._server.drain(_LAST_WRITES_SECONDS)
        await asyncio.to_thread(self._thread.stop)
