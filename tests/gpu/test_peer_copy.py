"""peer_copy between two processes on two GPUs: bytes, gate, fences, and the death of either."""

import multiprocessing.connection
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.connection import Connection

import numpy as np
import pytest
import torch

from tasuki.transfer.chunks.chunk import ChunkHeader, StepCounter
from tasuki.transfer.chunks.descriptors import Segments
from tasuki.transfer.chunks.digest import ArenaChunk, ChunkDigester
from tasuki.transfer.errors import OutOfBounds, TransportError
from tasuki.transfer.transports.base import (
    HeldTransfer,
    HeldWrite,
    Holding,
    TransferState,
    Write,
)
from tests.harness.fork_server import forked_peer
from tests.harness.loopback_pair import FULL, GDN, small_layout
from tests.harness.peer_wire import PeerWire, serve
from tests.harness.waiting import until

pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() < 2 or not torch.cuda.can_device_access_peer(0, 1),
    reason="needs two GPUs of one host that can access each other",
)

MIB = 1 << 20
SIZE = 256 * MIB
BLOCK = 32 * 1024
POISON = 0xA5


def arena(device: torch.device) -> torch.Tensor:
    """Return random bytes, the same in every process."""
    generator = torch.Generator(device).manual_seed(3)
    return torch.randint(0, 256, (SIZE,), dtype=torch.uint8, device=device, generator=generator)


def scattered(blocks: int, seed: int) -> Segments:
    generator = np.random.default_rng(seed)
    columns = [generator.permutation(SIZE // BLOCK)[:blocks] * BLOCK for _ in range(2)]
    return np.stack([*columns, np.full(blocks, BLOCK)], axis=1).astype(np.int64)


def receiver(channel: Connection) -> None:
    from tasuki.transfer.transports.nvlink.transport import PeerCopyTransport

    device = torch.device("cuda", 1)
    # After a neighbour in the same allocation, as arenas in torch's segments may be.
    memory = torch.full((2 * MIB + SIZE,), POISON, dtype=torch.uint8, device=device)[2 * MIB :]
    torch.cuda.synchronize(device)
    transport = PeerCopyTransport(device)
    transport.register(memory.data_ptr(), SIZE)
    answers = {
        "memory": lambda: memory.cpu().numpy(),
        "sum": lambda: int(memory.view(torch.int64).sum().item()),
        "sever": transport.sever,
    }
    serve(channel, transport, answers)


def flooding_sender(channel: Connection) -> None:
    """Connect to the received address and write without end."""
    from tasuki.transfer.transports.nvlink.transport import PeerCopyTransport

    memory = arena(torch.device("cuda", 0))
    transport = PeerCopyTransport(torch.device("cuda", 0))
    transport.register(memory.data_ptr(), SIZE)
    endpoint = transport.connect(channel.recv_bytes())
    seed = 0
    while True:
        seed += 1
        transport.release(transport.post(endpoint, scattered(2048, seed), b"flood"))
        if seed % 8 == 0:
            torch.cuda.synchronize()
        if seed == 24:
            channel.send("flooding")


class Wire(PeerWire):
    """This process sends from GPU 0, a child receives on GPU 1."""

    def __init__(self) -> None:
        from tasuki.transfer.transports.nvlink.transport import PeerCopyTransport

        self.memory = arena(torch.device("cuda", 0))
        torch.cuda.synchronize()
        transport = PeerCopyTransport(torch.device("cuda", 0))
        transport.register(self.memory.data_ptr(), SIZE)
        super().__init__(transport, receiver)


@pytest.fixture
def wire() -> Iterator[Wire]:
    with closing(Wire()) as made:
        yield made


def usable(device: int) -> bool:
    with torch.cuda.device(device):
        ones = torch.ones(1024, 1024, device="cuda")
        return bool((ones @ ones).sum().item() == 1024.0**3)


def test_scattered_pieces_land_before_their_notification(wire: Wire) -> None:
    expected = np.full(SIZE, POISON, dtype=np.uint8)
    source = wire.memory.cpu().numpy()
    segments = scattered(3000, 1)
    for number in range(3):
        part = segments[number * 1000 : number * 1000 + 1000]
        for local, remote, length in part.tolist():
            expected[remote : remote + length] = source[local : local + length]
        wire.write(part, b"window %d" % number)
        assert wire.ask("notes", 1) == [b"window %d" % number]
        assert np.array_equal(wire.ask("memory"), expected)
    wire.write([], b"nothing to send")
    assert wire.ask("notes", 1) == [b"nothing to send"]


def test_bounds_and_alignment_are_checked_before_posting(wire: Wire) -> None:
    for segment in ([SIZE - 16, 0, 32], [0, SIZE, 16], [-16, 0, 16], [0, 8, 16], [0, 0, 24]):
        with pytest.raises(OutOfBounds):
            wire.write([[0, 0, 16], segment], b"never")
    assert (wire.ask("memory") == POISON).all()


def test_a_severed_connection_writes_nothing_and_a_new_one_does(wire: Wire) -> None:
    wire.ask("sever")
    with pytest.raises(TransportError, match="shut its gate"):
        wire.write(scattered(100, 2), b"never")
    assert (wire.ask("memory") == POISON).all()
    wire.transport.disconnect(wire.endpoint)
    wire.endpoint = wire.transport.connect(wire.metadata)
    wire.write(scattered(100, 2), b"again")
    assert wire.ask("notes", 1) == [b"again"]
    assert (wire.ask("memory") != POISON).any()


def test_a_killed_receiver_leaves_the_senders_context_usable(wire: Wire) -> None:
    pending = [
        wire.transport.post(wire.endpoint, scattered(4096, seed), b"x") for seed in range(40)
    ]
    wire.kill_child()
    torch.cuda.synchronize(0)
    assert usable(0)
    with pytest.raises(TransportError, match="mailbox is gone"):
        for transfer in pending:
            until(lambda: wire.transport.poll(transfer) is TransferState.DONE, "it is pending")  # noqa: B023
    # The importer's mapping keeps the memory alive, so a late write does no harm.
    wire.transport.release(wire.transport.post(wire.endpoint, scattered(512, 99), b"late"))
    torch.cuda.synchronize(0)
    assert usable(0)


def test_a_killed_senders_writes_end_with_it_and_the_receiver_lives(wire: Wire) -> None:
    sender, channel = forked_peer(flooding_sender)
    channel.send_bytes(wire.metadata)
    assert channel.poll(120) and channel.recv() == "flooding"
    before = wire.ask("sum")
    # GPUs shared with other processes may pause for milliseconds.
    deadline = time.monotonic() + 10
    while wire.ask("sum") == before:
        assert time.monotonic() < deadline, "the flood does not reach the arena"
    assert sender.pid is not None
    pidfd = os.pidfd_open(sender.pid)
    os.kill(sender.pid, signal.SIGKILL)
    multiprocessing.connection.wait([pidfd], 20)
    os.close(pidfd)
    time.sleep(wire.transport.settle_seconds)
    after = wire.ask("sum")
    time.sleep(1.0)
    assert wire.ask("sum") == after, "a dead writer still wrote"
    sender.join()
    wire.write(scattered(10, 1), b"alive")
    while b"alive" not in (notes := wire.ask("notes", 1)):
        assert notes
    assert usable(0)


def test_unreachable_peers_are_refused_with_the_reason(wire: Wire) -> None:
    with pytest.raises(TransportError, match="this very process"):
        wire.transport.connect(wire.transport.metadata())
    elsewhere = wire.metadata.replace(b'"boot_id": "', b'"boot_id": "0')
    with pytest.raises(TransportError, match="another host"):
        wire.transport.connect(elsewhere)
    gpu = str(torch.cuda.get_device_properties(1).uuid).encode()
    stranger = wire.metadata.replace(gpu, b"0" + gpu)
    with pytest.raises(TransportError, match="not visible here"):
        wire.transport.connect(stranger)


def test_ends_and_arrivals_ring_and_windows_of_a_call_land_together(wire: Wire) -> None:
    """A sender and a receiver sleep until these events."""
    from tasuki.pycache._cpp_cache import Bell

    bell = Bell()
    wire.transport.ring_at_ends(bell)
    assert wire.transport.rings(wire.endpoint)
    source = wire.memory.cpu().numpy()
    expected = np.full(SIZE, POISON, dtype=np.uint8)
    segments = scattered(1200, 5)
    writes = [Write(segments[100 * n : 100 * n + 100], b"%d" % n) for n in range(12)]
    began = time.monotonic()
    posted = wire.transport.post_all(wire.endpoint, writes)
    for transfer in posted:
        assert not isinstance(transfer, Exception)
        while wire.transport.poll(transfer) is TransferState.PENDING:
            assert bell.wait(20), "nothing rang"
        assert transfer.ended_at is not None and began <= transfer.ended_at <= time.monotonic()
        wire.transport.release(transfer)
    for local, remote, length in segments.tolist():
        expected[remote : remote + length] = source[local : local + length]
    assert sorted(wire.ask("notes", 12)) == sorted(write.notification for write in writes)
    assert np.array_equal(wire.ask("memory"), expected)


def test_held_windows_leave_with_their_ticks_and_are_digested(wire: Wire) -> None:
    """By no thread of the interpreter: this one only ticks."""
    from tasuki.pycache._cpp_cache import Bell, WriteLease
    from tasuki.transfer.chunks.digest_kernel import GpuChunkDigester

    layout = small_layout((GDN, FULL, GDN, FULL), head_dim=32, kv_dtype="bfloat16")
    slabs = 64
    memory = wire.memory[: slabs * layout.slab_bytes]
    digester = GpuChunkDigester(memory, layout)
    twin = ChunkDigester(memory.cpu().numpy(), layout)
    steps, lease, bell = StepCounter(), WriteLease(), Bell()
    lease.extend(time.monotonic() + 60)
    wire.transport.ring_at_ends(bell)
    chunks = [
        ArenaChunk(7, 1, ChunkHeader(n, 0, 4, n, 2, True), (n * layout.blocks_per_slab, 0), n)
        for n in range(1, 9)
    ]
    segments = scattered(800, 6)
    held = [
        HeldWrite(Write(segments[100 * n : 100 * n + 100], b"%d" % n), n + 1, chunk)
        for n, chunk in enumerate(chunks)
    ]
    transfers = wire.transport.hold(wire.endpoint, held, Holding(steps, lease, digester.of_gpu))
    time.sleep(0.05)
    assert wire.ask("notes", 0) == []
    last = transfers.pop()
    for number, transfer in enumerate(transfers):
        assert isinstance(transfer, HeldTransfer) and transfer.posted_at is None
        ticked = time.monotonic()
        steps.tick()
        while wire.transport.poll(transfer) is TransferState.PENDING or not transfer.digest.done:
            assert bell.wait(20), "nothing rang"
        assert transfer.posted_at is not None and transfer.ended_at is not None
        assert ticked <= transfer.posted_at <= transfer.ended_at
        assert [transfer.digest.result()] == twin.digest_all([chunks[number]])
    assert isinstance(last, HeldTransfer)
    lease.extend(0.0)
    steps.tick()
    until(lambda: wire.transport.poll(last) is TransferState.DROPPED, "posted without a lease")
    assert wire.ask("notes", 7) == [b"%d" % n for n in range(7)]
    arrived = wire.ask("memory")
    source = wire.memory.cpu().numpy()
    for local, remote, length in segments[:700].tolist():
        assert (arrived[remote : remote + length] == source[local : local + length]).all()
