"""A decode node: the front door's services, an engine, its receiver and the links to prefill nodes.

Owns both ends (what leaves here are pulls), the node, and the event loop of the hand-over, on which
links and rooms live, so that nothing that clients ask keeps a beat waiting. Life: startup, then
whatever the daemon waits for, then shutdown.
"""

import asyncio
from dataclasses import asdict, replace
from functools import partial

from tasuki.engine.build import EngineParts, build_cache, build_decode_engine, build_early_start
from tasuki.engine.config import EngineConfig
from tasuki.engine.messages import EarlyStepEnded
from tasuki.server.config import ServerConfig
from tasuki.server.daemon.node import Node
from tasuki.server.grpc.services import grpc_services
from tasuki.server.openai.routes import openai_routes, served_model
from tasuki.server.role_change import RoleChange
from tasuki.server.smg.factory import gateway_of
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.tracing.tracing import open_tracing
from tasuki.transfer.data_plane import DataPlane
from tasuki.transfer.liveness.link_status import HandoverStatus
from tasuki.transfer.rooms.room_deadlines import ReceiverDeadlines
from tasuki.transfer.transfer_engine import TransferEngine
from tasuki.transfer.windows.step_counter import StepCounter
from tasuki.utils.loops.loop_thread import LoopThread
from tasuki.utils.progress import progress_bar
from tasuki.utils.tls import ClientTls

from .config import DecodeConfig
from .dialling import Dialling
from .handover_client import HandoverClient
from .handover_settings import HandoverSettings

# Reaching the prefill nodes for the first time, and etcd before.
_START_SECONDS = 30.0
# Rooms, pulls and links, each within its patience.
_STOP_SECONDS = 45.0
_LOOP_SECONDS = 10.0


def dialling(server_config: ServerConfig, config: DecodeConfig) -> Dialling:
    """This node shows prefill nodes the certificate that it shows its clients. Raises TlsError, and
    MembershipError where a prefill node that is named by the settings must not be dialled."""
    credentials = None
    if config.prefill_ca:
        tls = ClientTls(config.prefill_ca, server_config.tls_cert, server_config.tls_key)
        credentials = tls.grpc_credentials()
    made = Dialling(credentials, server_config.insecure)
    for target in config.targets:
        made.check(target)
    return made


def _settings(config: EngineConfig) -> HandoverSettings:
    return HandoverSettings(deadlines=ReceiverDeadlines(queue=config.queue_timeout))


class DecodeNode:
    """Build it inside a running event loop. REQUIRES: `plane` is over parts.arena. Raises TlsError,
    MembershipError."""

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
        dials = dialling(server_config, config)
        parts = replace(parts, slabs=plane.slabs, wire=plane.window_source.sizes)
        # What is pulled from here was computed long ago: no tick is waited for.
        steps = StepCounter()
        self._ends = TransferEngine.over(
            plane, steps, config.layers_per_window, config.lease_seconds
        )
        self._early = build_early_start(
            parts, self._ends.receiver.barrier, lambda: self.front.post(EarlyStepEnded())
        )
        engine = build_decode_engine(
            engine_config,
            parts,
            build_cache(engine_config, parts),
            self._early,
            progress_bar("decode graphs"),
        )
        gateway = gateway_of(
            engine_config,
            server_config,
            parts.model_config,
            engine.max_request_tokens,
            engine.max_batch,
            codec.tokenizer,
        )
        self.front = Node(
            engine,
            server_config,
            lambda client: (
                *grpc_services(client, codec, server_config, self._status, role_change),
                *gateway(client),
            ),
            handover=lambda message: self.links.deliver(message),
            routes=partial(
                openai_routes,
                model=served_model(
                    engine_config.model, server_config, engine.max_request_tokens, codec
                ),
            ),
            status=self._status,
            about={"node": config.name, "role": "decode"},
            tracing=open_tracing(server_config.otlp_endpoint, config.name, "decode"),
            chat_tokens=codec.chat_tokens,
        )
        self._loop = LoopThread("tasuki-handover", self.front.lose)
        self.links = HandoverClient(
            self.front.post,
            self._ends.receiver,
            self._ends.sender,
            plane.transport,
            plane.contract,
            plane.node,
            config.membership,
            self._loop.loop,
            settings or _settings(engine_config),
            dials,
            self.front.tracing.header,
            self.front.progress,
        )

    def _status(self) -> HandoverStatus:
        nodes = tuple(link.status() for link in self.links.links)
        peers = {node.address: node.progress for node in nodes if node.progress is not None}
        return HandoverStatus(nodes, asdict(self._ends.receiver.counters), peers=peers)

    async def startup(self) -> str:
        """Returns HOST:PORT."""
        self._ends.start()
        await asyncio.to_thread(self._early.prepare)
        self._loop.start()
        try:
            await self._loop.run(self.links.start(), _START_SECONDS)
            return await self.front.startup()
        except BaseException:
            await asyncio.to_thread(self._loop.stop, _LOOP_SECONDS)
            raise

    async def shutdown(self) -> None:
        """Requests in flight end within the drain timeout or are cut; the rest stops in order."""
        await self.front.refuse_and_drain()
        await self._loop.end(self.links.stop(), _STOP_SECONDS)
        await self.front.stop()
        await asyncio.to_thread(self._early.close)
        await asyncio.to_thread(self._ends.stop)
        # Last: engine and sender post to it until they end.
        await asyncio.to_thread(self._loop.stop, _LOOP_SECONDS)
