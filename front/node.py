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
from .services import front_services
from .text_codec import TextCodec

log = logging.getLogger(__name__)

# What answers already made may take to reach their clients once the engine is empty.
_LAST_WRITES_SECONDS = 1.0


class Node:
    """Owns the engine thread and the server. Build it inside a running event loop."""

    def __init__(
        self,
        engine: Engine,
        codec: TextCodec,
        config: FrontConfig,
        handover: Callable[[Outbox], None] | None = None,
    ) -> None:
        """handover: takes the engine's hand-over messages, on the engine's thread."""
        self._config = config
        self.engine = EngineClient(self.post, asyncio.get_running_loop(), handover)
        self._thread = EngineThread(engine, self.engine.deliver)
        self._services = front_services(self.engine, codec, config)
        self._server: Server | None = None

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
        """Say NOT_SERVING, let requests in flight end within drain_timeout, then stop all."""
        if self._server is None:
            return
        await self._server.refuse_traffic()
        try:
            await asyncio.wait_for(self.engine.drain(), self._config.drain_timeout)
        except TimeoutError:
            log.warning("requests still in flight after %s s are cut", self._config.drain_timeout)
            await self._server.drain(0)
        await self._server.drain(_LAST_WRITES_SECONDS)
        await asyncio.to_thread(self._thread.stop)
