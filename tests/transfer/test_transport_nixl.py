"""NIXL between two processes: bytes, order of notifications, bounds, a peer's death, a clean
exit."""

import time
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.connection import Connection

import numpy as np
import pytest

from tasuki.pycache.layout import Span
from tasuki.transfer.chunks.descriptors import TransferUnits
from tasuki.transfer.errors import OutOfBounds, TransportError
from tasuki.transfer.transports.base import Endpoint, TransferState
from tasuki.transfer.transports.nixl.transport import (
    NixlTransport,
    configure_environment,
    installed_package,
)
from tests.harness.peer_wire import PeerWire, serve

pytestmark = pytest.mark.skipif(installed_package() is None, reason="NIXL is not installed")

SIZE = 1 << 22


def target(channel: Connection) -> None:
    transport = NixlTransport("target")
    memory = np.zeros(SIZE, dtype=np.uint8)
    transport.register(memory.ctypes.data, memory.size)
    back: list[Endpoint] = []

    def put() -> bool:
        """Return True if a write to the peer arrived, False if it failed."""
        try:
            transfer = transport.post(back[0], np.array([[0, 0, 4096]]), b"back")
            while transport.poll(transfer) is TransferState.PENDING:
                time.sleep(0.001)
        except TransportError:
            return False
        return True

    def connect(metadata: bytes) -> None:
        back.append(transport.connect(metadata))

    serve(channel, transport, {"memory": memory.tobytes, "connect": connect, "put": put})


class Wire(PeerWire):
    def __init__(self, units: TransferUnits | None = None) -> None:
        configure_environment()
        transport = NixlTransport("source")
        self.memory = np.random.default_rng(5).integers(0, 256, SIZE, dtype=np.uint8)
        transport.register(self.memory.ctypes.data, self.memory.size, units)
        super().__init__(transport, target)


@pytest.fixture
def wire() -> Iterator[Wire]:
    with closing(Wire()) as made:
        yield made


def test_scattered_pieces_land_before_their_notification(wire: Wire) -> None:
    generator = np.random.default_rng(2)
    block = 4096
    sources = generator.permutation(SIZE // block)[:200] * block
    targets = generator.permutation(SIZE // block)[:200] * block
    expected = np.zeros(SIZE, dtype=np.uint8)
    for number in range(4):
        part = slice(number * 50, number * 50 + 50)
        segments = [
            (int(a), int(b), block) for a, b in zip(sources[part], targets[part], strict=True)
        ]
        for a, b, length in segments:
            expected[b : b + length] = wire.memory[a : a + length]
        wire.write(segments, b"window %d" % number)
        assert wire.ask("notes", 1) == [b"window %d" % number]
        assert wire.ask("memory") == expected.tobytes()
    wire.write([], b"nothing to send")
    assert wire.ask("notes", 1) == [b"nothing to send"]


def test_what_was_prepared_is_posted_by_index_and_all_else_as_before() -> None:
    block, slab, state = 4096, 10 * 4096, 3 * 4096 + 64
    units = TransferUnits(block, slab, (Span(0, state), Span(state, state)))
    with closing(Wire(units)) as made:
        expected = np.zeros(SIZE, dtype=np.uint8)
        chunks = [
            [(3 * block, 90 * block, 4 * block), (40 * block, 17 * block, block)],
            [(2 * slab + state, 5 * slab + state, state), (7 * slab, 30 * slab, state)],
            [(60 * block, 61 * block, block), (8 * slab, 40 * slab, state)],
            [(64, 70 * block + 128, 192)],
        ]
        for number, segments in enumerate(chunks):
            indices = units.indices(np.array(segments, dtype=np.int64), SIZE, SIZE)
            assert (indices is None) == (number == 3)
            for a, b, length in segments:
                expected[b : b + length] = made.memory[a : a + length]
            made.write(segments, b"window %d" % number)
            assert made.ask("notes", 1) == [b"window %d" % number]
        assert made.ask("memory") == expected.tobytes()


def test_bounds_are_checked_on_both_sides_before_posting(wire: Wire) -> None:
    for segment in [(0, SIZE - 8, 16), (SIZE, 0, 1), (-8, 0, 8), (0, 2**63 - 8, 16), (0, 0, 0)]:
        with pytest.raises(OutOfBounds, match="segment 1"):
            wire.write([(0, 0, 8), segment], b"never")
    wire.write([(0, 0, 8)], b"only this")
    assert wire.ask("notes", 1) == [b"only this"]


def test_a_killed_peer_is_an_error_or_stays_pending_and_close_still_works(wire: Wire) -> None:
    wire.write([(0, 0, 64)], b"warm")
    wire.kill_child()
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
    # In both cases the sender's drain deadline bounds the transfer's end; no result at all would
    # not.
    assert outcome in ("pending", "error")


def test_severing_breaks_what_a_peer_writes_over_a_connection_that_we_opened(wire: Wire) -> None:
    """UCX uses one socket for both directions, from either side's connect."""
    wire.ask("connect", wire.transport.metadata())
    assert wire.ask("put"), "there is a way back"
    wire.transport.sever()
    assert not wire.ask("put"), "and now there is none"


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
