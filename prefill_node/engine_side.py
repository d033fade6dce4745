"""Part of a prefill node in its engine's process: engine, sender and the Handover service.

Owns the sender, the receiver (for pulls), the service and the hand-over's event loop. The server
and the transfers live on this loop, so callers' requests never delay a heartbeat. Implements
EngineSide.
"""

from dataclasses import replace
from functools import partial

from tasuki.engine.assembly.engines import build_cache, build_prefill_engine
from tasuki.engine.assembly.parts import EngineParts
from tasuki.engine.config import EngineConfig
from tasuki.engine.messages import Outbox
from tasuki.proto import handover_pb2_grpc
from tasuki.server.auth.callers import Access
from tasuki.server.bind import BindError, is_loopback, parse_bind
from tasuki.server.config import ServerConfig
from tasuki.server.daemon.pair_daemon import (
    LOOP_SECONDS,
    START_SECONDS,
    STOP_SECONDS,
    PairSide,
)
from tasuki.server.daemon.running_engine import HandoverFront
from tasuki.server.discovery.etcd import Etcd
from tasuki.server.discovery.registration import Registration
from tasuki.server.grpc.server import Server, Service, start_server
from tasuki.transfer.control.link_status import HandoverStatus
from tasuki.transfer.data_plane import DataPlane, TransferEngine
from tasuki.transfer.lifecycle.deadlines import SenderDeadlines
from tasuki.utils.logs import progress_bar

from .config import PrefillConfig
from .gateway_transfers import GatewayTransfers
from .handover_service import HandoverService, HandoverServiceSettings

_LAST_WRITES_SECONDS = 1.0


def require_named_peers(bind: str, access: Access) -> None:
    """Raise BindError unless decode nodes on other hosts must show a certificate, because a
    connected peer can write to this node's memory. bind: HOST:PORT of the hand-over's server."""
    host, _ = parse_bind(bind, access)
    if access.insecure or is_loopback(host) or (access.tls is not None and access.tls.client_ca):
        return
    raise BindError(
        f"bind {bind}: a prefill node off loopback must know its decode nodes: give "
        "--tls-client-ca with the authority of their certificates, or pass --insecure on a private "
        "network"
    )


class PrefillSide(PairSide):
    """Engine's side of a prefill node. REQUIRES: the data plane `plane` is over the engine's arena,
    parts.arena. Raises BindError."""

    def __init__(
        self,
        engine_config: EngineConfig,
        server_config: ServerConfig,
        config: PrefillConfig,
        parts: EngineParts,
        plane: DataPlane,
        front: HandoverFront,
        gateway_transfers: GatewayTransfers | None = None,
    ) -> None:
        """gateway_transfers: transfers announced by a gateway, if this process serves one; else
        None."""
        self._access = server_config.access
        self._etcd_access = server_config.etcd_access
        if config.etcd:
            self._etcd_access.check(config.etcd)
        require_named_peers(config.handover_bind or server_config.bind, self._access)
        parts = replace(parts, slabs=plane.slabs, wire=plane.chunk_source.sizes)
        steps = parts.sent_behind or parts.steps
        ends = TransferEngine.over(plane, steps, config.layers_per_window, config.lease_seconds)
        self.engine = build_prefill_engine(
            engine_config,
            parts,
            build_cache(engine_config, parts),
            ends.sender,
            progress_bar("decode graphs"),
        )
        super().__init__(ends, front.lose)
        self._config = config
        self._server: Server | None = None
        self._registration: Registration | None = None
        self._service = HandoverService(
            front.post_observed,
            self._ends.sender,
            self._ends.receiver,
            plane.transport,
            plane.contract,
            plane.node,
            self.loop.loop,
            HandoverServiceSettings(deadlines=SenderDeadlines.behind(engine_config.queue_timeout)),
            begin_transfer=front.begin_transfer,
            gateway_transfers=gateway_transfers,
            progress=front.progress,
        )

    @property
    def handover_address(self) -> str | None:
        """Return HOST:PORT of the hand-over's own server; None if it uses the server for
        callers."""
        return None if self._server is None else self._server.address

    @property
    def services(self) -> list[Service]:
        """Return the gRPC services for decode nodes."""
        register = partial(handover_pb2_grpc.add_HandoverServicer_to_server, self._service)
        return [Service("tasuki.handover.v1.Handover", register)]

    def deliver(self, message: Outbox) -> None:
        self._service.deliver(message)

    def status(self) -> HandoverStatus:
        return HandoverStatus(sent=self._ends.sender.counters, peers=self._service.peers())

    def begin(self) -> None:
        """Start the sender, the receiver and the event loop."""
        self._ends.start()
        self.loop.start()

    async def start(self) -> None:
        """Call begin(), start the separate server for decode nodes, and register. REQUIRES:
        handover_bind is set."""
        self.begin()
        try:
            await self.serve()
            await self.register(self.handover_address or "")
        except BaseException:
            await self.give_up()
            raise

    async def serve(self) -> None:
        """Start the separate server for decode nodes. REQUIRES: handover_bind is set."""
        starting = start_server(self._config.handover_bind, self.services, self._access)
        self._server = await self.loop.run(starting, START_SECONDS)

    async def register(self, address: str) -> None:
        """Register this node at etcd, if the settings name one. address: HOST:PORT for decode
        nodes, unless the settings name another."""
        if not self._config.etcd:
            return
        reached_at = self._config.advertise or address
        await self.loop.run(self._register(reached_at), START_SECONDS)

    async def _register(self, address: str) -> None:
        """Start the registration at etcd. It runs on the hand-over's loop, because an entry without
        renewal removes the node."""
        self._registration = Registration(
            Etcd(self._config.etcd, self._etcd_access),
            self._config.etcd_prefix + self._config.name,
            address,
        )
        self._registration.start()

    async def retire(self) -> None:
        """Unregister (if registered) and refuse new calls before the front drains. So decode nodes
        no longer find this node and ask it for nothing more."""
        if self._registration is not None:
            await self.loop.end(self._registration.stop(), LOOP_SECONDS)
        if self._server is not None:
            await self._server.refuse_traffic()

    async def end_handover(self) -> None:
        await self.loop.end(self._service.stop(), STOP_SECONDS)
        if self._server is not None:
            await self._server.drain(_LAST_WRITES_SECONDS)
