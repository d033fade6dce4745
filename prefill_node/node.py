"""A prefill node: an engine that stops after the first token, its sender, the Handover service.

Owns both ends (what comes in are pulls) and the node. Life: startup, then whatever the daemon waits
for, then shutdown.
"""

import asyncio
import logging
from dataclasses import replace
from functools import partial

from ..engine.build import EngineParts, build_engine
from ..engine.config import EngineConfig
from ..engine.messages import Outbox
from ..engine.role import Role
from ..front.config import FrontConfig
from ..front.etcd import Etcd
from ..front.gateway import gateway_of
from ..front.handover_status import HandoverStatus
from ..front.node import Node
from ..front.progress_bar import progress_bar
from ..front.role_change import RoleChange
from ..front.server import BindError, Service, is_loopback, parse_bind
from ..front.services import admin_service
from ..front.trace_export import open_tracing
from ..front.unserved import unserved_routes
from ..proto import handover_pb2_grpc
from ..pycache.prefix_cache import FreshIds, leave_as_is
from ..transfer.data_plane import DataPlane
from ..transfer.hop_ends import HopEnds
from ..transfer.room_deadlines import SenderDeadlines
from .config import PrefillConfig
from .handover_service import HandoverService, HandoverServiceSettings
from .registration import Registration
from .told_rooms import ToldRooms

log = logging.getLogger(__name__)


def require_named_peers(config: FrontConfig) -> None:
    """Who connects is given keys to this node's memory, so off loopback it must show a certificate.
    Raises BindError."""
    access = config.access
    host, _ = parse_bind(config.bind, access)
    if access.insecure or is_loopback(host) or (access.tls is not None and access.tls.client_ca):
        return
    raise BindError(
        f"bind {config.bind}: a prefill node off loopback must know its decode nodes: give "
        "--tls-client-ca with the authority of their certificates, or pass --insecure on a private "
        "network"
    )


class PrefillNode:
    """Build it inside a running event loop. REQUIRES: `plane` is over parts.arena. Raises
    BindError."""

    def __init__(
        self,
        engine_config: EngineConfig,
        front_config: FrontConfig,
        config: PrefillConfig,
        parts: EngineParts,
        plane: DataPlane,
        on_fresh: FreshIds = leave_as_is,
        role_change: RoleChange | None = None,
    ) -> None:
        require_named_peers(front_config)
        parts = replace(parts, slabs=plane.slabs, wire=plane.outlet.sizes)
        self._ends = HopEnds.over(
            plane, parts.steps, config.layers_per_window, config.lease_seconds
        )
        engine = build_engine(
            engine_config,
            Role.PREFILL,
            parts,
            self._ends.sender,
            on_fresh,
            progress=progress_bar("decode graphs"),
        )
        told_rooms = ToldRooms() if front_config.gateway else None
        gateway = gateway_of(
            engine_config, front_config, parts.model_config, engine, None, told_rooms
        )
        self.front = Node(
            engine,
            front_config,
            lambda client: (
                admin_service(client, front_config, store=None, role_change=role_change),
                *gateway(client),
            ),
            handover=self._handover,
            routes=lambda client: unserved_routes(),
            status=self._status,
            about={"node": config.name, "role": "prefill"},
            tracing=open_tracing(front_config.otlp_endpoint, config.name, "prefill"),
        )
        self._config = config
        self._registration: Registration | None = None
        self._service = HandoverService(
            self.front.post,
            self._ends.sender,
            self._ends.receiver,
            plane.transport,
            plane.contract,
            plane.node,
            asyncio.get_running_loop(),
            HandoverServiceSettings(deadlines=SenderDeadlines.behind(engine_config.queue_timeout)),
            begin_room=self.front.tracing.begin_room,
            told_rooms=told_rooms,
        )

    def _handover(self, message: Outbox) -> None:
        self._service.deliver(message)

    def _status(self) -> HandoverStatus:
        return HandoverStatus(sent=self._ends.sender.counters)

    async def startup(self) -> str:
        """Returns HOST:PORT."""
        self._ends.start()
        register = partial(handover_pb2_grpc.add_HandoverServicer_to_server, self._service)
        address = await self.front.startup([Service("tasuki.handover.v1.Handover", register)])
        if self._config.etcd:
            self._registration = Registration(
                Etcd(self._config.etcd),
                self._config.etcd_prefix + self._config.name,
                self._config.advertise or address,
            )
            self._registration.start()
        return address

    async def shutdown(self) -> None:
        """Rooms in flight end within the drain timeout or are given up; the rest stops in order."""
        if self._registration is not None:
            await self._registration.stop()
        await self.front.refuse_and_drain()
        await self._service.stop()
        await self.front.stop()
        await asyncio.to_thread(self._ends.stop)
