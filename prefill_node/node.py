"""A prefill node: an engine that stops after the first token, its sender, the Handover service.

Owns both ends (what comes in are pulls), the node, and the event loop of the hand-over, on which
its server and its rooms live, so that nothing that callers ask keeps a beat waiting. Life: startup,
then whatever the daemon waits for, then shutdown.
"""

import asyncio
from dataclasses import replace
from functools import partial

from tasuki.engine.build import EngineParts, build_cache, build_prefill_engine
from tasuki.engine.config import EngineConfig
from tasuki.engine.messages import RoomId
from tasuki.proto import handover_pb2_grpc
from tasuki.server.auth.access import Access
from tasuki.server.bind import BindError, is_loopback, parse_bind
from tasuki.server.config import ServerConfig
from tasuki.server.daemon.node import Node
from tasuki.server.discovery.etcd import Etcd
from tasuki.server.discovery.registration import Registration
from tasuki.server.grpc.server import Server, Service, start_server
from tasuki.server.grpc.services import admin_service
from tasuki.server.grpc.unimplemented import unimplemented_routes
from tasuki.server.role_change import RoleChange
from tasuki.server.smg.factory import gateway_of
from tasuki.server.tracing.tracing import open_tracing
from tasuki.transfer.data_plane import DataPlane
from tasuki.transfer.liveness.link_status import HandoverStatus
from tasuki.transfer.rooms.room_deadlines import SenderDeadlines
from tasuki.transfer.transfer_engine import TransferEngine
from tasuki.utils.loops.loop_thread import LoopThread
from tasuki.utils.progress import progress_bar

from .config import PrefillConfig
from .gateway_answers import GatewayAnswers
from .gateway_rooms import GatewayRooms
from .handover_service import HandoverService, HandoverServiceSettings

_START_SECONDS = 30.0
# Rooms and pulls, each within its patience.
_STOP_SECONDS = 45.0
_LOOP_SECONDS = 10.0
_LAST_WRITES_SECONDS = 1.0


def require_named_peers(bind: str, access: Access) -> None:
    """Who connects is given keys to this node's memory, so off loopback it must show a certificate.
    bind: HOST:PORT of the hand-over. Raises BindError."""
    host, _ = parse_bind(bind, access)
    if access.insecure or is_loopback(host) or (access.tls is not None and access.tls.client_ca):
        return
    raise BindError(
        f"bind {bind}: a prefill node off loopback must know its decode nodes: give "
        "--tls-client-ca with the authority of their certificates, or pass --insecure on a private "
        "network"
    )


class PrefillNode:
    """Build it inside a running event loop. REQUIRES: `plane` is over parts.arena. Raises
    BindError."""

    def __init__(
        self,
        engine_config: EngineConfig,
        server_config: ServerConfig,
        config: PrefillConfig,
        parts: EngineParts,
        plane: DataPlane,
        role_change: RoleChange | None = None,
    ) -> None:
        require_named_peers(config.handover_bind or server_config.bind, server_config.access)
        parts = replace(parts, slabs=plane.slabs, wire=plane.window_source.sizes)
        self._ends = TransferEngine.over(
            plane, parts.steps, config.layers_per_window, config.lease_seconds
        )
        engine = build_prefill_engine(
            engine_config,
            parts,
            build_cache(engine_config, parts),
            self._ends.sender,
            progress_bar("decode graphs"),
        )
        self._loop = LoopThread("tasuki-handover", lambda reason: self.front.lose(reason))
        gateway_rooms = GatewayRooms() if server_config.gateway else None
        answers = None if gateway_rooms is None else GatewayAnswers(gateway_rooms, self._loop)
        gateway = gateway_of(
            engine_config,
            server_config,
            parts.model_config,
            engine.max_request_tokens,
            engine.max_batch,
            None,
            answers,
        )
        self.front = Node(
            engine,
            server_config,
            lambda client: (
                admin_service(client, server_config, store=None, role_change=role_change),
                *gateway(client),
            ),
            handover=lambda message: self._service.deliver(message),
            routes=lambda client: unimplemented_routes(),
            status=self._status,
            about={"node": config.name, "role": "prefill"},
            tracing=open_tracing(server_config.otlp_endpoint, config.name, "prefill"),
        )
        self._config = config
        self._fronts_loop = asyncio.get_running_loop()
        self._access = server_config.access
        self._server: Server | None = None
        self._registration: Registration | None = None
        self._service = HandoverService(
            self.front.post,
            self._ends.sender,
            self._ends.receiver,
            plane.transport,
            plane.contract,
            plane.node,
            self._loop.loop,
            HandoverServiceSettings(deadlines=SenderDeadlines.behind(engine_config.queue_timeout)),
            begin_room=self._begin_room,
            gateway_rooms=gateway_rooms,
            progress=self.front.progress,
        )

    @property
    def handover_address(self) -> str | None:
        """HOST:PORT of the hand-over's server; None where it shares the front's."""
        return None if self._server is None else self._server.address

    def _begin_room(self, room: RoomId, request: str, traceparent: str) -> None:
        """Before anything of the room reaches the engine, so before its end is reported."""
        begin = self.front.tracing.begin_room
        self._fronts_loop.call_soon_threadsafe(begin, room, request, traceparent)

    def _status(self) -> HandoverStatus:
        return HandoverStatus(sent=self._ends.sender.counters, peers=self._service.peers())

    async def startup(self) -> str:
        """Returns the front's HOST:PORT."""
        self._ends.start()
        self._loop.start()
        try:
            address = await self._serve()
            if self._config.etcd:
                reached_at = self._config.advertise or self.handover_address or address
                await self._loop.run(self._register(reached_at), _START_SECONDS)
        except BaseException:
            await asyncio.to_thread(self._loop.stop, _LOOP_SECONDS)
            raise
        return address

    async def _serve(self) -> str:
        register = partial(handover_pb2_grpc.add_HandoverServicer_to_server, self._service)
        handover = [Service("tasuki.handover.v1.Handover", register)]
        if not self._config.handover_bind:
            return await self.front.startup(handover, self._loop)
        starting = start_server(self._config.handover_bind, handover, self._access)
        self._server = await self._loop.run(starting, _START_SECONDS)
        return await self.front.startup()

    async def _register(self, address: str) -> None:
        """On the hand-over's loop too: an entry that is not renewed takes the node away."""
        self._registration = Registration(
            Etcd(self._config.etcd), self._config.etcd_prefix + self._config.name, address
        )
        self._registration.start()

    async def shutdown(self) -> None:
        """Rooms in flight end within the drain timeout or are given up; the rest stops in order."""
        if self._registration is not None:
            await self._loop.end(self._registration.stop(), _LOOP_SECONDS)
        if self._server is not None:
            await self._server.refuse_traffic()
        await self.front.refuse_and_drain()
        await self._loop.end(self._service.stop(), _STOP_SECONDS)
        if self._server is not None:
            await self._server.drain(_LAST_WRITES_SECONDS)
        await self.front.stop()
        await asyncio.to_thread(self._ends.stop)
        # Last: engine and sender post to it until they end.
        await asyncio.to_thread(self._loop.stop, _LOOP_SECONDS)
