"""Bytes left by a dead or severed writer wait in the kernel for a blocked receiver. No granted page
may be free before they have arrived. Also the set of broken connections."""

import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from tasuki.transfer.chunks.digest import ChunkDigester
from tasuki.transfer.errors import TransportError
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.receiving.target_arena import TargetArena
from tasuki.transfer.transports.nixl.inbound_sockets import (
    InboundSockets,
    is_ours,
    listening_ports,
    owned_connections,
)
from tasuki.transfer.transports.nixl.transport import NixlTransport, installed_package
from tests.harness.fork_server import forked_peer
from tests.harness.loopback_pair import small_layout
from tests.harness.waiting import HANG_SECONDS, until

needs_nixl = pytest.mark.skipif(installed_package() is None, reason="NIXL is not installed")
SEGMENT = 1 << 20
SEGMENTS = 32


def writer(channel: Connection) -> None:
    """Post more than sockets hold, then wait to be killed."""
    transport = NixlTransport("writer")
    memory = np.full(SEGMENTS * SEGMENT, 7, dtype=np.uint8)
    transport.register(memory.ctypes.data, memory.size)
    endpoint = transport.connect(channel.recv_bytes())
    warm = transport.post(endpoint, np.array([[0, 0, 8]], dtype=np.int64), b"warm")
    while transport.poll(warm).name == "PENDING":
        time.sleep(0.001)
    channel.send("warm")
    channel.recv()
    posted = [
        transport.post(
            endpoint, np.array([[i * SEGMENT, i * SEGMENT, SEGMENT]], dtype=np.int64), b"w"
        )
        for i in range(SEGMENTS)
    ]
    channel.send("posted")
    while True:
        for transfer in posted:
            # A severed write breaks; the writer lives on.
            with suppress(TransportError):
                transport.poll(transfer)
        time.sleep(0.001)


class HeldUp:
    """A receiver's memory; its writer has posted more bytes than have arrived."""

    def __init__(self) -> None:
        self.process, channel = forked_peer(writer)
        layout = small_layout()
        slabs = SEGMENTS * SEGMENT // layout.slab_bytes + 1
        self.memory = np.zeros(slabs * layout.slab_bytes, dtype=np.uint8)
        self.transport = NixlTransport("receiver")
        self.transport.register(self.memory.ctypes.data, self.memory.size)
        channel.send_bytes(self.transport.metadata())
        while not channel.poll(0.001):
            self.transport.notifications()
        channel.recv()
        channel.send("go")
        # The receiver does not read meanwhile, so the sockets fill.
        assert channel.poll(HANG_SECONDS) and channel.recv() == "posted"
        time.sleep(0.3)
        digester = ChunkDigester(self.memory, layout)
        self.receiver = Receiver(layout, [TargetArena(slabs, self.transport, digester)])

    @property
    def arrived(self) -> int:
        return int((self.memory == 7).sum())

    def kill_writer(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()

    def close(self) -> None:
        self.receiver.stop()
        self.process.kill()
        self.process.join()
        self.transport.close()


@pytest.fixture
def held_up() -> Iterator[HeldUp]:
    with closing(HeldUp()) as made:
        yield made


@needs_nixl
def test_a_dead_writers_bytes_land_whenever_they_are_read(held_up: HeldUp) -> None:
    """Why its death alone is no fence."""
    held_up.kill_writer()
    before = held_up.arrived
    time.sleep(0.5)
    held_up.receiver.start()
    until(lambda: held_up.arrived > before, "nothing came late: then this is not needed")


@needs_nixl
def test_nothing_lands_once_a_dead_writer_is_severed_and_settled(held_up: HeldUp) -> None:
    held_up.kill_writer()
    assert held_up.transport.sever_dead() > 0
    assert held_up.transport.unread() > 0
    settling = threading.Thread(target=held_up.receiver.wait_settled)
    settling.start()
    settling.join(0.3)
    assert settling.is_alive(), "settled though nothing was read"
    held_up.receiver.start()
    settling.join(HANG_SECONDS)
    assert not settling.is_alive()
    arrived = held_up.arrived
    time.sleep(0.5)
    assert held_up.arrived == arrived, "written after it was settled"


@needs_nixl
def test_severing_ends_a_writer_that_lives(held_up: HeldUp) -> None:
    assert held_up.transport.sever_dead() == 0, "its writer lives"
    held_up.transport.sever()
    held_up.receiver.start()
    held_up.receiver.wait_settled()
    arrived = held_up.arrived
    time.sleep(0.5)
    assert held_up.arrived == arrived < SEGMENTS * SEGMENT
    assert held_up.process.is_alive()


@needs_nixl
def test_a_running_receiver_has_all_that_comes_within_the_settling_time(held_up: HeldUp) -> None:
    """settle_seconds is the time for the way from the peer's host; this test measures on one
    host."""
    held_up.receiver.start()
    time.sleep(0.005)
    held_up.kill_writer()
    died = changed = time.monotonic()
    arrived = held_up.arrived
    while time.monotonic() - died < 0.6:
        now = held_up.arrived
        if now != arrived:
            arrived, changed = now, time.monotonic()
    print(f"the last byte landed {1000 * (changed - died):.1f} ms after the writer's death")
    held_up.receiver.wait_settled()
    assert held_up.arrived == arrived


def test_only_connections_without_an_owner_are_broken() -> None:
    before = listening_ports()
    with socket.create_server(("127.0.0.1", 0)) as server:
        inbound = InboundSockets(before)
        ends = [socket.create_connection(server.getsockname()) for _ in range(2)]
        accepted = [server.accept()[0] for _ in ends]
        known = {(end.getsockname(), end.getpeername()) for end in (*ends, *accepted)}
        assert known <= owned_connections()
        assert inbound.shut_down_orphans() == 0
        # A close with bytes under way: the end lives on in the kernel, without an owner.
        ends[0].sendall(b"under way")
        ends[0].close()
        assert inbound.unread() == len(b"under way")
        assert inbound.shut_down_orphans() == 1
        assert inbound.unread() == len(b"under way"), "what arrived can still be read"
        assert accepted[0].recv(100) == b"under way"
        assert inbound.unread() == 0
        ends[1].sendall(b"stands")
        assert accepted[1].recv(100) == b"stands"
        for end in (ends[1], *accepted):
            end.close()


def test_an_address_is_ours_if_it_can_be_bound() -> None:
    assert is_ours("127.0.0.1") and is_ours("::1")
    assert not is_ours("192.0.2.1") and not is_ours("2001:db8::1")


def handles() -> Counter[str]:
    """Return this process's open files by target. Files of other tests may close at any time."""
    found = Counter[str]()
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found[os.readlink(handle)] += 1
    # Without the handle of the listing itself.
    return Counter({name: count for name, count in found.items() if "/fd" not in name})


def test_only_connections_to_new_listeners_are_broken_and_no_handle_is_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as old:
        before = listening_ports()
        with socket.create_server(("127.0.0.1", 0)) as new:
            inbound = InboundSockets(before)
            ends = [socket.create_connection(server.getsockname()) for server in (old, new)]
            accepted = [server.accept()[0] for server in (old, new)]
            before_it = handles()
            assert inbound.shut_down() == 1
            assert not handles() - before_it
            ends[0].sendall(b"stands")
            assert accepted[0].recv(6) == b"stands"
            # Later data is answered by RST.
            assert ends[1].recv(1) == b""
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                for _ in range(100):
                    ends[1].sendall(b"late")
            for end in (*ends, *accepted):
                end.close()
