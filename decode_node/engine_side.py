"""Part of a decode node in its engine's process: engine, receiver and links to prefill nodes.

Owns the receiver, the sender (for pulls), the links and the hand-over's event loop. Links and
transfers live on this loop, so client requests never delay a heartbeat. Implements EngineSide.
"""

import asyncio
from dataclasses import asdict, replace
from typing import cast

from tasuki.decode_node.config import DecodeConfig, HandoverSettings
from tasuki.decode_node.handover_client import HandoverClient
from tasuki.decode_node.prefill_links import Dialling
from tasuki.engine.assembly.engines import build_cache, build_decode_engine, build_early_start
from tasuki.engine.assembly.parts import EngineParts
from tasuki.engine.config import EngineConfig
from tasuki.engine.handover.early_start import no_barriers
from tasuki.engine.messages import EarlyStepEnded, Outbox
from tasuki.routing.node_choice import RouteName
from tasuki.server.config import ServerConfig
from tasuki.server.daemon.pair_daemon import START_SECONDS, STOP_SECONDS, PairSide
from tasuki.server.daemon.running_engine import HandoverFront
from tasuki.transfer.chunks.chunk import StepCounter
from tasuki.transfer.control.link_status import HandoverStatus
from tasuki.transfer.data_plane import DataPlane, TransferEngine
from tasuki.transfer.lifecycle.deadlines import ReceiverDeadlines
from tasuki.utils.logs import progress_bar
from tasuki.utils.tls import ClientTls


def dialling(server_config: ServerConfig, config: DecodeConfig) -> Dialling:
    """Return the rule for connecting to prefill nodes; this node shows them the certificate of its
    client server. Raises TlsError, and MembershipError if a prefill node named by the settings must
    not be connected to."""
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


class DecodeSide(PairSide):
    """Engine's side of a decode node. REQUIRES: the data plane `plane` is over the engine's arena,
    parts.arena. Raises TlsError, MembershipError."""

    handover_address = None

    def __init__(
        self,
        engine_config: EngineConfig,
        server_config: ServerConfig,
        config: DecodeConfig,
        parts: EngineParts,
        plane: DataPlane,
        front: HandoverFront,
        settings: HandoverSettings | None = None,
    ) -> None:
        dials = dialling(server_config, config)
        parts = replace(parts, slabs=plane.slabs, wire=plane.chunk_source.sizes)
        # Pulled states were computed long ago, so only ticks of other ranks are awaited.
        steps = parts.sent_behind or StepCounter()
        ends = TransferEngine.over(plane, steps, config.layers_per_window, config.lease_seconds)
        # A step beside the batch's would have the ranks exchange out of order.
        barriers = ends.receiver.barrier if parts.ranks is None else no_barriers
        self._early = build_early_start(
            parts, barriers, lambda: front.post_observed(EarlyStepEnded())
        )
        self.engine = build_decode_engine(
            engine_config,
            parts,
            build_cache(engine_config, parts),
            self._early,
            progress_bar("decode graphs"),
        )
        super().__init__(ends, front.lose)
        self.links = HandoverClient(
            front.post_observed,
            ends.receiver,
            ends.sender,
            plane.transport,
            plane.contract,
            plane.node,
            config.membership(server_config.etcd_access),
            self.loop.loop,
            settings or _settings(engine_config),
            dials,
            front.header,
            front.progress,
            cast(RouteName, engine_config.route),
            engine_config.pull_tokens,
        )

    def deliver(self, message: Outbox) -> None:
        self.links.deliver(message)

    def status(self) -> HandoverStatus:
        nodes = self.links.statuses()
        peers = {node.address: node.progress for node in nodes if node.progress is not None}
        return HandoverStatus(nodes, asdict(self._ends.receiver.counters), peers=peers)

    async def start(self) -> None:
        self._ends.start()
        await asyncio.to_thread(self._early.prepare)
        self.loop.start()
        try:
            await self.loop.run(self.links.start(), START_SECONDS)
        except BaseException:
            await self.give_up()
            raise

    async def retire(self) -> None:
        """Do nothing: a decode node is registered nowhere for its peers."""

    async def end_handover(self) -> None:
        await self.loop.end(self.links.stop(), STOP_SECONDS)

    async def stop(self) -> None:
        await asyncio.to_thread(self._early.close)
        await super().stop()
