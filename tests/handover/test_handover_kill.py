"""A prefill process over NIXL: a whole hand-over, and SIGKILL while layer chunks arrive and after
the end, with the fence by proof of death."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.process import BaseProcess

import numpy as np

from tasuki.decode_node.handover_client import HandoverClient
from tasuki.engine import messages as m
from tasuki.server.discovery.membership import FixedMembership
from tasuki.transfer.chunks.chunk import StepCounter
from tasuki.transfer.chunks.digest import ChunkDigester
from tasuki.transfer.node_identity import NodeIdentity
from tasuki.transfer.protocol.contract import Contract
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.receiving.target_arena import TargetArena
from tasuki.transfer.sending.link import SourceArena
from tasuki.transfer.sending.sender import Sender
from tasuki.transfer.transports.nixl.transport import NixlTransport
from tests.harness.fork_server import forked_peer
from tests.harness.handover_nodes import SLABS, Inbound, grant_of, wanted
from tests.harness.loopback_pair import POISON, small_layout
from tests.harness.prefill_process import main, source_ids, source_memory
from tests.harness.running_nodes import needs_nixl
from tests.harness.waiting import HANG_SECONDS

pytestmark = needs_nixl

TRANSFER_ID = 3
LAYERS = len(small_layout().layers)


class Decode:
    def __init__(self, process: BaseProcess, memory: np.ndarray, receiver: Receiver) -> None:
        self.process = process
        self.memory = memory
        self.receiver = receiver
        self.inbound = Inbound()
        self.client: HandoverClient

    def kill(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(HANG_SECONDS)

    async def arrived(self, chunks: int) -> None:
        async with asyncio.timeout(HANG_SECONDS):
            while self.receiver.chunks_arrived(TRANSFER_ID) < chunks:
                await asyncio.sleep(0.002)


@asynccontextmanager
async def decode_node(layers: int = LAYERS) -> AsyncIterator[Decode]:
    process, channel = forked_peer(main, layers)
    layout = small_layout()
    memory = np.full(SLABS * layout.slab_bytes, POISON, dtype=np.uint8)
    transport = NixlTransport("decode")
    transport.register(memory.ctypes.data, memory.size)
    receiver = Receiver(layout, [TargetArena(SLABS, transport, ChunkDigester(memory, layout))])
    digester = ChunkDigester(memory, layout)
    source = SourceArena.direct(layout, transport, digester, StepCounter(), SLABS)
    sender = Sender(layout, [source])
    receiver.start()
    sender.start()
    node = Decode(process, memory, receiver)
    try:
        port = await asyncio.wait_for(asyncio.to_thread(channel.recv), HANG_SECONDS)
        node.client = HandoverClient(
            node.inbound.post,
            receiver,
            sender,
            transport,
            Contract("weights", layout),
            NodeIdentity.new("decode-0", "nixl", transport.metadata(), SLABS),
            FixedMembership([f"127.0.0.1:{port}"]),
            asyncio.get_running_loop(),
        )
        await node.client.start()
        await node.inbound.wait(m.PeersChanged)
        yield node
        await node.client.stop()
    finally:
        if process.is_alive():
            channel.send("stop")
        process.join(HANG_SECONDS)
        if process.exitcode is None:
            process.kill()
            process.join()
        sender.stop()
        receiver.stop()
        transport.close()
        channel.close()


async def granted(node: Decode) -> m.Grant:
    node.client.deliver(wanted(TRANSFER_ID))
    await node.inbound.wait(m.GrantWanted)
    grant = grant_of(TRANSFER_ID, small_layout())
    node.client.deliver(m.HandoverGranted(grant))
    return grant


async def test_a_room_over_nixl_between_two_processes() -> None:
    async with decode_node() as node:
        grant = await granted(node)
        await node.inbound.wait(m.RemoteDone)
        layout, source = small_layout(), source_memory()
        pages, slot = source_ids()
        for layer, cache in enumerate(layout.layers):
            if cache.page:
                pairs = [
                    (layout.page_span(layer, ours), layout.page_span(layer, theirs))
                    for ours, theirs in zip(grant.pages, pages, strict=True)
                ]
            else:
                spans = layout.state_span(layer, grant.slot), layout.state_span(layer, slot)
                pairs = [spans]
            for ours, theirs in pairs:
                arrived = node.memory[ours.offset : ours.offset + ours.length]
                sent = source[theirs.offset : theirs.offset + theirs.length]
                assert (arrived == sent).all()
    assert node.process.exitcode == 0


async def test_a_killed_prefill_process_is_noticed_and_fenced() -> None:
    """It is killed while layer chunks arrive. The simulated pair covers the other phases."""
    async with decode_node(LAYERS // 2) as node:
        await granted(node)
        await node.arrived(LAYERS // 2)
        await node.inbound.wait(m.RemoteReady)
        node.kill()
        await node.inbound.wait(m.HandoverFailed)
        # The fence is by proof of death, because the lease outlasts the test.
        await node.inbound.wait(m.WriterFenced)
        async with asyncio.timeout(HANG_SECONDS):
            while node.inbound.of(m.PeersChanged)[-1] != m.PeersChanged(False):
                await asyncio.sleep(0.005)
        assert not node.inbound.of(m.RemoteDone)
        assert len(node.inbound.of(m.WriterFenced)) == 1


async def test_death_after_done_does_not_matter() -> None:
    async with decode_node() as node:
        await granted(node)
        await node.inbound.wait(m.RemoteDone)
        node.kill()
        await asyncio.sleep(0.5)
        assert not node.inbound.of(m.HandoverFailed)
