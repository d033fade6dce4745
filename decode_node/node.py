"""A decode node: the front door's services over an engine's side, in one process or in two.

Life: startup, then whatever the daemon waits for, then shutdown.
"""

from collections.abc import Callable
from functools import partial

from tasuki.engine.build import EngineParts
from tasuki.engine.config import EngineConfig
from tasuki.engine.messages import Outbox
from tasuki.model.config import ModelConfig
from tasuki.server.config import ServerConfig
from tasuki.server.daemon.client_routes import client_routes
from tasuki.server.daemon.near_engine import NearEngine
from tasuki.server.daemon.node import Node
from tasuki.server.daemon.running_engine import RunningEngine
from tasuki.server.grpc.services import grpc_services
from tasuki.server.openai.routes import served_model
from tasuki.server.role_change import RoleChange
from tasuki.server.smg.factory import gateway_of
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.tracing.tracing import open_tracing
from tasuki.transfer.data_plane import DataPlane
from tasuki.transfer.liveness.link_status import HandoverStatusSource

from .config import DecodeConfig
from .engine_side import DecodeSide
from .handover_settings import HandoverSettings


class DecodeNode:
    """Front and engine in one process. Build it inside a running event loop. REQUIRES: `plane` is
    over parts.arena. Raises TlsError, MembershipError."""

    def __init__(
        self,
        engine_config: EngineConfig,
        server_config: ServerConfig,
        config: DecodeConfig,
        parts: EngineParts,
        plane: DataPlane,
        codec: TextCodec,
        settings: HandoverSettings | None = None,
        role_change: RoleChange | None = None,
    ) -> None:
        self.near = NearEngine()
        self._side = DecodeSide(
            engine_config, server_config, config, parts, plane, self.near, settings
        )
        engine = self._side.engine
        self.near.hold(engine)
        self.links = self._side.links
        self.front = decode_front(
            self.near,
            engine_config,
            server_config,
            config,
            parts.model_config,
            codec,
            engine.max_request_tokens,
            engine.max_batch,
            self._side.status,
            role_change,
            self._side.deliver,
        )

    async def startup(self) -> str:
        """Returns HOST:PORT."""
        await self._side.start()
        try:
            return await self.front.startup()
        except BaseException:
            await self._side.give_up()
            raise

    async def shutdown(self) -> None:
        """Requests in flight end within the drain timeout or are cut; the rest stops in order."""
        await self.front.refuse_and_drain()
        await self._side.end_handover()
        await self.front.stop()
        await self._side.stop()


def decode_front(
    engine: RunningEngine,
    engine_config: EngineConfig,
    server_config: ServerConfig,
    config: DecodeConfig,
    model: ModelConfig,
    codec: TextCodec,
    max_request_tokens: int,
    max_batch: int,
    status: HandoverStatusSource,
    role_change: RoleChange | None = None,
    handover: Callable[[Outbox], None] | None = None,
) -> Node:
    """The front of a decode node, wherever its engine runs. max_request_tokens, max_batch: the
    engine's. handover: as Node's."""
    gateway = gateway_of(
        engine_config, server_config, model, max_request_tokens, max_batch, codec.tokenizer
    )
    return Node(
        engine,
        server_config,
        lambda client: (
            *grpc_services(client, codec, server_config, status, role_change),
            *gateway(client),
        ),
        handover=handover,
        routes=partial(
            client_routes,
            model=served_model(engine_config.model, server_config, max_request_tokens, codec),
            config=server_config,
        ),
        status=status,
        about={"node": config.name, "role": "decode"},
        tracing=open_tracing(server_config.otlp_endpoint, config.name, "decode"),
        chat_tokens=codec.chat_tokens,
    )
