"""NIXL between two processes: bytes, order of notifications, bounds, a peer's death, a clean
exit."""

import importlib.util
import multiprocessing as mp
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import numpy as np
import pytest
from tasuki.transfer.errors import OutOfBounds, TransportError
from tasuki.transfer.transports.base import Endpoint, TransferState
from tasuki.transfer.transports.nixl.transport import NixlTransport, configure_environment
from tasuki.transfer.windows.units import Grain

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nixl_cu13") is None and importlib.util.find_spec("nixl_cu12") is None,
    reason="NIXL is not installed",
)

SIZE = 1 << 22


def target(channel: Connection) -> None:
    """Answers "notes N": the first N notifications; "bytes A B": that part of its memory;
    "connect METADATA" and "put": whether a write to that peer landed or failed; "close"."""
    transport = NixlTransport("target")
    memory = np.zeros(SIZE, dtype=np.uint8)
    transport.register(memory.ctypes.data, memory.size)
    channel.send_bytes(transport.metadata())
    notes: list[bytes] = []
    while True:
        # Bytes and endpoints move while notifications are asked for, as a receiver always does.
        while not channel.poll(0.001):
            notes += transport.notifications()
        command, *numbers = channel.recv()
        if command == "notes":
            deadline = time.monotonic() + 20
            while len(notes) < numbers[0] and time.monotonic() < deadline:
                notes += transport.notifications()
                time.sleep(0.001)
            channel.send(notes)
            notes = []
        elif command == "bytes":
            channel.send_bytes(memory[numbers[0] : numbers[1]].tobytes())
        elif command == "connect":
            back = transport.connect(numbers[0])
            channel.send(True)
        elif command == "put":
            channel.send(put(transport, back))
        else:
            transport.close()
            return


def put(transport: NixlTransport, endpoint: Endpoint) -> bool:
    """Whether a write landed; False where it failed."""
    try:
        transfer = transport.post(endpoint, np.array([[0, 0, 4096]]), b"back")
        while transport.poll(transfer) is TransferState.PENDING:
            time.sleep(0.001)
    except TransportError:
        return False
    return True


class Wire:
    def __init__(self, grain: Grain | None = None) -> None:
        configure_environment()
        context = mp.get_context("spawn")
        self.channel, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=target, args=(theirs,))
        self.process.start()
        theirs.close()
        self.transport = NixlTransport("source")
        self.memory = np.random.default_rng(5).integers(0, 256, SIZE, dtype=np.uint8)
        self.transport.register(self.memory.ctypes.data, self.memory.size, grain)
        assert self.channel.poll(60)
        self.endpoint: Endpoint = self.transport.connect(self.channel.recv_bytes())

    def write(self, pieces: list[tuple[int, int, int]], note: bytes) -> None:
        rows = np.array(pieces, dtype=np.int64).reshape(-1, 3)
        transfer = self.transport.post(self.endpoint, rows, note)
        deadline = time.monotonic() + 20
        try:
            while self.transport.poll(transfer) is TransferState.PENDING:
                assert time.monotonic() < deadline, "still pending"
                time.sleep(0.0005)
        finally:
            self.transport.release(transfer)

    def ask(self, *command: object) -> list[bytes]:
        self.channel.send(command)
        assert self.channel.poll(30)
        answer: list[bytes] = self.channel.recv()
        return answer

    def close(self) -> None:
        self.transport.close()
        if self.process.is_alive():
            self.channel.send(("close",))
        self.process.join(10)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.channel.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    made.close()


def test_scattered_pieces_land_before_their_notification(wire: Wire) -> None:
    generator = np.random.default_rng(2)
    block = 4096
    sources = generator.permutation(SIZE // block)[:200] * block
    targets = generator.permutation(SIZE // block)[:200] * block
    expected = np.zeros(SIZE, dtype=np.uint8)
    for number in range(4):
        part = slice(number * 50, number * 50 + 50)
        pieces = [
            (int(a), int(b), block) for a, b in zip(sources[part], targets[part], strict=True)
        ]
        for a, b, length in pieces:
            expected[b : b + length] = wire.memory[a : a + length]
        wire.write(pieces, b"window %d" % number)
        assert wire.ask("notes", 1) == [b"window %d" % number]
        wire.channel.send(("bytes", 0, SIZE))
        assert wire.channel.recv_bytes() == expected.tobytes()
    wire.write([], b"nothing to send")
    assert wire.ask("notes", 1) == [b"nothing to send"]


def test_what_was_prepared_is_posted_by_index_and_all_else_as_before() -> None:
    block, slab, state = 4096, 10 * 4096, 3 * 4096 + 64
    grain = Grain(block, slab, state, states=2)
    made = Wire(grain)
    try:
        expected = np.zeros(SIZE, dtype=np.uint8)
        windows = [
            [(3 * block, 90 * block, 4 * block), (40 * block, 17 * block, block)],
            [(2 * slab + state, 5 * slab + state, state), (7 * slab, 30 * slab, state)],
            [(60 * block, 61 * block, block), (8 * slab, 40 * slab, state)],
            [(64, 70 * block + 128, 192)],
        ]
        for number, pieces in enumerate(windows):
            indices = grain.indices(np.array(pieces, dtype=np.int64), SIZE, SIZE)
            assert (indices is None) == (number == 3)
            for a, b, length in pieces:
                expected[b : b + length] = made.memory[a : a + length]
            made.write(pieces, b"window %d" % number)
            assert made.ask("notes", 1) == [b"window %d" % number]
        made.channel.send(("bytes", 0, SIZE))
        assert made.channel.recv_bytes() == expected.tobytes()
    finally:
        made.close()


def test_bounds_are_checked_on_both_sides_before_posting(wire: Wire) -> None:
    for piece in [(0, SIZE - 8, 16), (SIZE, 0, 1), (-8, 0, 8), (0, 2**63 - 8, 16), (0, 0, 0)]:
        with pytest.raises(OutOfBounds, match="piece 1"):
            wire.write([(0, 0, 8), piece], b"never")
    wire.write([(0, 0, 8)], b"only this")
    assert wire.ask("notes", 1) == [b"only this"]


def test_a_killed_peer_is_an_error_or_stays_pending_and_close_still_works(wire: Wire) -> None:
    wire.write([(0, 0, 64)], b"warm")
    assert wire.process.pid is not None
    os.kill(wire.process.pid, signal.SIGKILL)
    wire.process.join(10)
    outcome = "never failed"
    for _ in range(40):
        try:
            transfer = wire.transport.post(
                wire.endpoint, np.array([[0, 0, SIZE]], dtype=np.int64), b"into the void"
            )
            deadline = time.monotonic() + 0.5
            while wire.transport.poll(transfer) is TransferState.PENDING:
                if time.monotonic() > deadline:
                    outcome = "pending"
                    break
            wire.transport.release(transfer)
        except TransportError:
            outcome = "error"
        if outcome != "never failed":
            break
        time.sleep(0.1)
    # Either way the room's end is bounded by the sender's drain deadline; silence would not be.
    assert outcome in ("pending", "error")


def test_severing_breaks_what_a_peer_writes_over_a_connection_that_we_opened(wire: Wire) -> None:
    """UCX uses one socket for both directions, whoever opened it."""
    wire.channel.send(("connect", wire.transport.metadata()))

    def answer() -> bool:
        deadline = time.monotonic() + 20
        while not wire.channel.poll(0.001):
            wire.transport.notifications()
            assert time.monotonic() < deadline
        return bool(wire.channel.recv())

    assert answer()
    wire.channel.send(("put",))
    assert answer(), "there is a way back"
    wire.transport.sever()
    wire.channel.send(("put",))
    assert not answer(), "and now there is none"


def test_a_closed_connection_takes_no_transfers(wire: Wire) -> None:
    wire.transport.disconnect(wire.endpoint)
    wire.transport.disconnect(wire.endpoint)
    with pytest.raises(TransportError, match="closed"):
        wire.write([(0, 0, 8)], b"never")


def test_metadata_that_is_not_nixls_is_refused(wire: Wire) -> None:
    for blob in (
        b"",
        b"{}\nx",
        b"\xff\xfe",
        b'{"address": 1, "size": 2, "device": 0, "memory": "DRAM"}\nx',
    ):
        with pytest.raises(TransportError):
            wire.transport.connect(blob)


def test_an_arena_is_registered_once() -> None:
    transport = NixlTransport("alone")
    with pytest.raises(TransportError, match="register the arena first"):
        transport.metadata()
    memory = np.zeros(4096, dtype=np.uint8)
    transport.register(memory.ctypes.data, memory.size)
    with pytest.raises(TransportError, match="registered already"):
        transport.register(memory.ctypes.data, memory.size)
    transport.close()
    transport.close()
    assert transport.notifications() == []
