"""A prefill and a decode node reduced to their transfers: real gRPC, sender and receiver, scripted
engines."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import grpc
import numpy as np
import pytest

from tasuki.decode_node.config import HandoverSettings
from tasuki.decode_node.handover_client import HandoverClient
from tasuki.engine import messages as m
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.prefill_node.handover_service import HandoverService, HandoverServiceSettings
from tasuki.proto import handover_pb2_grpc
from tasuki.pycache.layout import CacheLayout
from tasuki.server.discovery.membership import FixedMembership
from tasuki.transfer.lifecycle.deadlines import (
    PullReceiverDeadlines,
    PullSenderDeadlines,
    ReceiverDeadlines,
)
from tasuki.transfer.node_identity import NodeIdentity
from tasuki.transfer.protocol.contract import Contract
from tasuki.transfer.sending.sender import SenderSettings
from tasuki.transfer.settings import Precision, WirePrecision
from tasuki.transfer.transports.loopback import Faults, no_faults
from tests.harness.loopback_pair import Pair, cells_in_use, loopback_pair, plans, random_ids
from tests.harness.waiting import HANG_SECONDS

GENERATION, PULL_GENERATION = 11, 70
PAGES = 4
SLABS_OF_TRANSFER = 3
SLABS = 8 * SLABS_OF_TRANSFER
HIT = m.HitBreakdown(256, 128, 64, {"new": 128, "alignment": 64}, "turn_end")
LOOK = 0.05
LIMITS = HandoverSettings(
    silence=0.8,
    retry_first=0.05,
    landing=0.5,
    acknowledge=1.0,
    patience=1.0,
    deadlines=ReceiverDeadlines(look=LOOK),
    pull=PullSenderDeadlines(look=LOOK),
)
SERVICE_LIMITS = HandoverServiceSettings(
    heartbeat_seconds=0.1,
    timeout_seconds=0.8,
    progress_seconds=LOOK,
    pull=PullReceiverDeadlines(look=LOOK),
)


def grant_of(transfer_id: int, layout: CacheLayout) -> m.Grant:
    """Return the destination of a transfer: page ids and a slot in three slabs of the arena, not
    shared with neighbouring transfers."""
    slot = transfer_id * SLABS_OF_TRANSFER % SLABS
    ids = [
        slab * layout.blocks_per_slab + k
        for slab in range(slot + 1, slot + SLABS_OF_TRANSFER)
        for k in range(layout.pages_per_slab)
    ]
    return m.Grant(m.TransferId(transfer_id), GENERATION, 0, tuple(reversed(ids[:PAGES])), slot)


def pull_of(transfer_id: int, layout: CacheLayout) -> m.PullGrant:
    """Return the prefill node's destination (page ids and a slot) of a pull."""
    granted = grant_of(transfer_id + 1, layout)
    return m.PullGrant(
        m.TransferId(transfer_id),
        PULL_GENERATION,
        250,
        granted.first_page,
        granted.pages,
        granted.slot,
    )


def source_of(transfer_id: int, layout: CacheLayout) -> m.PullSource:
    """Return the decode node's source (page ids and a slot) of a pull."""
    pages, slot = random_ids(layout, SLABS, PAGES, np.random.default_rng(3))
    return m.PullSource(m.TransferId(transfer_id), pages, slot)


def wanted(transfer_id: int) -> m.HandoverWanted:
    sampling = SamplingParams(max_new_tokens=5, temperature=0.5, top_p=0.9, stop_token_ids=(3,))
    transfer_request = m.TransferRequest(
        m.TransferId(transfer_id), GENERATION, 64, sampling, b"salt", (10, 20), message_end=240
    )
    return m.HandoverWanted(
        m.RequestId(f"r{transfer_id}"), transfer_request, np.arange(250, dtype=np.int32)
    )


@dataclass
class Inbound:
    """The messages received by a scripted engine. Tests await them by kind."""

    messages: list[m.Inbox] = field(default_factory=list)
    _came_at: list[float] = field(default_factory=list)
    _came: asyncio.Condition = field(default_factory=asyncio.Condition)

    def post(self, message: m.Inbox) -> None:
        self.messages.append(message)
        self._came_at.append(time.monotonic())

    def came_at(self, kind: type) -> float:
        """Return the monotonic time of the first message of type `kind`; infinity if none came."""
        times = zip(self.messages, self._came_at, strict=True)
        return next((at for message, at in times if isinstance(message, kind)), math.inf)

    def of(self, kind: type, transfer_id: int | None = None) -> list:
        return [
            message
            for message in self.messages
            if isinstance(message, kind)
            and (transfer_id is None or transfer_of(message) == transfer_id)
        ]

    async def wait(
        self, kind: type, transfer_id: int | None = None, timeout: float = HANG_SECONDS
    ) -> m.Inbox:
        async with asyncio.timeout(timeout):
            while not (found := self.of(kind, transfer_id)):
                await asyncio.sleep(0.002)
        return found[0]


def transfer_of(message: object) -> int | None:
    if isinstance(message, m.PrefillReserve | m.FetchReserve):
        return message.transfer_request.transfer_id
    if isinstance(message, m.PrefillStart):
        return message.grant.transfer_id
    return getattr(message, "transfer_id", None)


@dataclass
class Nodes:
    pair: Pair
    service: HandoverService
    client: HandoverClient
    server: grpc.aio.Server
    port: int
    prefill: Inbound
    decode: Inbound

    async def connected(self) -> None:
        await self.decode.wait(m.PeersChanged)

    async def reserve(self, transfer_id: int) -> None:
        """Run a transfer until its prompt is in the prefill engine's queue. This method and the
        next ones skip the steps already done."""
        if not self.prefill.of(m.PrefillReserve, transfer_id):
            self.client.deliver(wanted(transfer_id))
            await self.prefill.wait(m.PrefillReserve, transfer_id)

    async def accept(self, transfer_id: int) -> None:
        await self.reserve(transfer_id)
        if not self.decode.of(m.GrantWanted, transfer_id):
            self.service.deliver(m.PrefillQueue((m.TransferId(transfer_id),)))
            self.service.deliver(m.PrefillAccepted(m.TransferId(transfer_id)))
            await self.decode.wait(m.GrantWanted, transfer_id)

    async def grant(self, transfer_id: int) -> None:
        """Run a transfer until its destination is granted, before its first forward."""
        await self.accept(transfer_id)
        if not self.prefill.of(m.PrefillStart, transfer_id):
            self.client.deliver(m.HandoverGranted(grant_of(transfer_id, self.pair.target.layout)))
            await self.prefill.wait(m.PrefillStart, transfer_id)

    async def hand_over(
        self, transfer_id: int, pulled: m.PullReport | None = None
    ) -> tuple[tuple[int, ...], int]:
        """Run a transfer with both engines' part: grant, forwards, first token. Returns the
        sender's own page ids and slot."""
        await self.grant(transfer_id)
        local = self.compute(transfer_id)
        self.say_token(transfer_id, pulled)
        return local

    async def pull(self, transfer_id: int) -> None:
        """Run a transfer until the prefill node's pull request reaches the decode engine."""
        await self.reserve(transfer_id)
        self.service.deliver(m.PullWanted(pull_of(transfer_id, self.pair.source.layout)))
        await self.decode.wait(m.PullAsked, transfer_id)

    def compute(self, transfer_id: int) -> tuple[tuple[int, ...], int]:
        """Run the forwards of a transfer. Returns the sender's own page ids and slot."""
        layout, slabs = self.pair.source.layout, self.pair.source.slabs
        local, slot = random_ids(layout, slabs, PAGES, np.random.default_rng(transfer_id + 100))
        self.pair.run(transfer_id, plans(local, slot, 3))
        return local, slot

    def say_token(self, transfer_id: int, pulled: m.PullReport | None = None) -> None:
        self.service.deliver(m.PrefillToken(m.TransferId(transfer_id), 42, -0.5, 1.25, HIT, pulled))

    async def quiet(self) -> None:
        """Wait until no transfer or pull is left on either node. Assert an empty staging memory if
        the wire's precision is inexact."""
        client, service, pair = self.client, self.service, self.pair
        transfers = (client._transfers, client._fetches, service._transfers, pair.sender._transfers)
        pulls = (client._pulls, service._pulls, pair.back_sender._transfers)
        async with asyncio.timeout(HANG_SECONDS):
            while any((*transfers, *pulls)):
                await asyncio.sleep(0.005)
        if not pair.source.precision.exact:
            assert cells_in_use(pair.source, pair.target) == 0


EXACT, FP8 = WirePrecision(), WirePrecision(Precision.FP8, Precision.FP8)
on_both_wires = pytest.mark.parametrize("precision", [EXACT, FP8], ids=["exact", "fp8"])


@asynccontextmanager
async def nodes(
    faults: Faults = no_faults,
    sender: SenderSettings | None = None,
    limits: HandoverSettings = LIMITS,
    decode_contract: Callable[[Contract], Contract] = lambda contract: contract,
    back_faults: Faults = no_faults,
    precision: WirePrecision = EXACT,
    service_limits: HandoverServiceSettings = SERVICE_LIMITS,
    layout: CacheLayout | None = None,
    pictures: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[Nodes]:
    """Run both nodes. pictures: their contract for pictures."""
    settings = sender or SenderSettings(lease_seconds=3.0)
    with loopback_pair(
        layout,
        slabs=SLABS,
        faults=faults,
        settings=settings,
        back_faults=back_faults,
        precision=precision,
        kept_back=0 if precision.exact else 1,
    ) as pair:
        contract = Contract("weights", pair.source.layout, pictures=pictures)
        prefill, decode = Inbound(), Inbound()
        service = HandoverService(
            prefill.post,
            pair.sender,
            pair.back_receiver,
            pair.source.transport,
            contract,
            NodeIdentity.new(
                "prefill-0", "loopback", pair.source.transport.metadata(), pair.source.slabs
            ),
            asyncio.get_running_loop(),
            service_limits,
        )
        theirs = decode_contract(contract)
        async with serving(service) as (server, port):
            try:
                async with receiving(pair, port, decode.post, theirs, limits) as client:
                    yield Nodes(pair, service, client, server, port, prefill, decode)
            finally:
                await service.stop()


@asynccontextmanager
async def serving(
    servicer: handover_pb2_grpc.HandoverServicer,
) -> AsyncIterator[tuple[grpc.aio.Server, int]]:
    """Run a gRPC server for the servicer. Yields the server and its port."""
    server = grpc.aio.server()
    handover_pb2_grpc.add_HandoverServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield server, port
    finally:
        await server.stop(0)


@asynccontextmanager
async def receiving(
    pair: Pair,
    port: int,
    post: Callable[[m.Inbox], None],
    contract: Contract,
    limits: HandoverSettings = LIMITS,
) -> AsyncIterator[HandoverClient]:
    """Yield the decode node's half of transfers, over the pair's target arena. port: the prefill
    node's gRPC port. post: receives messages to the engine."""
    client = HandoverClient(
        post,
        pair.receiver,
        pair.back_sender,
        pair.target.transport,
        contract,
        NodeIdentity.new(
            "decode-0", "loopback", pair.target.transport.metadata(), pair.target.slabs
        ),
        FixedMembership([f"127.0.0.1:{port}"]),
        asyncio.get_running_loop(),
        limits,
    )
    await client.start()
    try:
        yield client
    finally:
        pair.fabric.let_go()
        await client.stop()


def other_weights(contract: Contract) -> Contract:
    return replace(contract, weights_digest="others", page_tokens=128)
