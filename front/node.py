"""What every daemon with a client side shares: engine thread, its client, services, server.

Does not know roles or hand-overs. One event loop's thread; the engine has its own. Life: startup,
then whatever the daemon waits for, then shutdown, once each.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ..engine.config import option
from ..engine.engine import Engine
from ..engine.messages import Inbox, Outbox
from ..engine.thread import EngineThread
from ..proto import inference_pb2_grpc as pb_grpc
from .admin_service import AdminService
from .engine_client import EngineClient
from .inference_service import InferenceService
from .server import Server, Service, start_server
from .session_service import SessionService
from .session_store import SessionStore
from .text_codec import TextCodec

log = logging.getLogger(__name__)

# What answers already made may take to reach their clients once the engine is empty.
_LAST_WRITES_SECONDS = 1.0


@dataclass(frozen=True)
class FrontConfig:
    bind: str = option("127.0.0.1:50051", "HOST:PORT to serve; port 0 picks one")
    allow_insecure: bool = option(False, "serve a non-loopback address although there is no TLS")
    drain_timeout: float = option(30.0, "seconds that requests in flight get after SIGTERM")
    max_sessions: int = option(1024, "sessions open at a time")
    session_idle_seconds: float = option(3600.0, "a session idle so long may give way to a new one")
    exit_with_parent: bool = option(False, "stop when stdin ends, as a launcher's child should")

    def __post_init__(self) -> None:
        if self.max_sessions < 1:
            raise ValueError(f"max_sessions must be at least 1, not {self.max_sessions}")
        if not self.drain_timeout >= 0:
            raise ValueError(f"drain_timeout must be 0 or more, not {self.drain_timeout}")


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


def front_services(
    engine: EngineClient, codec: TextCodec, config: FrontConfig
) -> tuple[Service, ...]:
    """Inference, Session and CacheAdmin over one engine."""
    store = SessionStore(engine, time.monotonic, config.max_sessions, config.session_idle_seconds)
    inference = InferenceService(engine, codec)
    session = SessionService(engine, codec, store)
    admin = AdminService(engine, store)
    return (
        Service(
            "tasuki.v1.Inference",
            partial(pb_grpc.add_InferenceServicer_to_server, inference),
        ),
        Service(
            "tasuki.v1.Session",
            partial(pb_grpc.add_SessionServicer_to_server, session),
        ),
        Service(
            "tasuki.v1.CacheAdmin",
            partial(pb_grpc.add_CacheAdminServicer_to_server, admin),
        ),
    )
