"""A prefill node reduced to its transfers, as a process a test may kill: NIXL, gRPC, a scripted
engine."""

import asyncio
from multiprocessing.connection import Connection

import grpc
import numpy as np

from tasuki.engine import messages as m
from tasuki.prefill_node.handover_service import HandoverService
from tasuki.proto import handover_pb2_grpc
from tasuki.transfer.chunks.chunk import FinishedLayers, StepCounter
from tasuki.transfer.chunks.digest import ChunkDigester
from tasuki.transfer.node_identity import NodeIdentity
from tasuki.transfer.protocol.contract import Contract
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.receiving.target_arena import TargetArena
from tasuki.transfer.sending.link import SourceArena
from tasuki.transfer.sending.sender import Sender, SenderSettings
from tasuki.transfer.transports.nixl.transport import NixlTransport
from tests.harness.handover_nodes import HIT, PAGES, SLABS
from tests.harness.loopback_pair import random_ids, small_layout

SEED = 9
LEASE_SECONDS = 600.0
"""Lease in seconds, longer than any test. A fence of this node can then only come from its
death."""


def source_memory() -> np.ndarray:
    size = SLABS * small_layout().slab_bytes
    return np.random.default_rng(SEED).integers(0, 256, size, dtype=np.uint8)


def source_ids() -> tuple[tuple[int, ...], int]:
    return random_ids(small_layout(), SLABS, PAGES, np.random.default_rng(SEED))


def main(channel: Connection, layers: int) -> None:
    """Run the process: send its gRPC port, then the name of every message to its engine; run until
    told to stop, or killed. layers: number of a transfer's layers computed by its engine before the
    first token."""
    asyncio.run(serve(channel, layers))


async def serve(channel: Connection, layers: int) -> None:
    loop = asyncio.get_running_loop()
    layout, memory = small_layout(), source_memory()
    transport = NixlTransport("prefill")
    transport.register(memory.ctypes.data, memory.size)
    steps = StepCounter()
    digester = ChunkDigester(memory, layout)
    source = SourceArena.direct(layout, transport, digester, steps, SLABS)
    settings = SenderSettings(lease_seconds=LEASE_SECONDS)
    sender = Sender(layout, [source], settings)
    receiver = Receiver(layout, [TargetArena(SLABS, transport, ChunkDigester(memory, layout))])
    sender.start()
    receiver.start()

    def engine(message: m.Inbox) -> None:
        channel.send(type(message).__name__)
        match message:
            case m.PrefillReserve(transfer_request=transfer_request):
                service.deliver(m.PrefillAccepted(transfer_request.transfer_id))
            case m.PrefillStart(grant=grant):
                pages, slot = source_ids()
                sender.plan_forward(grant.transfer_id, FinishedLayers(steps.value, 0, pages, slot))
                for _ in range(layers):
                    steps.tick()
                service.deliver(m.PrefillToken(grant.transfer_id, 1, 0.0, 1.0, HIT))

    service = HandoverService(
        engine,
        sender,
        receiver,
        transport,
        Contract("weights", layout),
        NodeIdentity.new("prefill-0", "nixl", transport.metadata(), SLABS),
        loop,
    )
    server = grpc.aio.server()
    handover_pb2_grpc.add_HandoverServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel.send(port)
    await asyncio.to_thread(channel.recv)
    await service.stop()
    await server.stop(0)
    sender.stop()
    receiver.stop()
    transport.close()
