"""Several transports as one: the transport used for each peer, and the contract of a single
transport for all."""

import json

import numpy as np
import pytest
import torch

from tasuki.transfer.errors import TransportError
from tasuki.transfer.node_identity import ProcessIdentity
from tasuki.transfer.settings import TRANSPORTS
from tasuki.transfer.transports.base import RankMemory, Region, TransferState, Transport
from tasuki.transfer.transports.factory import RoutedTransport, build_transport
from tasuki.transfer.transports.loopback import LoopbackFabric, LoopbackTransport
from tasuki.transfer.transports.nvlink.cuda_ipc import Export
from tasuki.transfer.transports.nvlink.peer_address import MailboxAddress, PeerAddress, PeerArena

SIZE = 4096


class Node:
    """An arena behind a routed transport over the fabrics named."""

    def __init__(self, name: str, fabrics: dict[str, LoopbackFabric]) -> None:
        self.memory = np.zeros(SIZE, dtype=np.uint8)
        self.transport = RoutedTransport(
            {kind: LoopbackTransport(fabric, name) for kind, fabric in fabrics.items()}
        )
        self.transport.register(self.memory.ctypes.data, SIZE)


def test_a_peer_is_reached_by_the_first_member_that_reaches_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    near, far = LoopbackFabric(), LoopbackFabric()
    sender = Node("sender", {"near": near, "far": far})
    neighbour = Node("neighbour", {"near": near, "far": far})
    # Another host's fabric has the same name and does not lead here.
    stranger = Node("stranger", {"near": LoopbackFabric(), "far": far})
    sender.memory[:16] = 7
    caplog.set_level("INFO")
    for target, kind in ((neighbour, "near"), (stranger, "far")):
        endpoint = sender.transport.connect(target.transport.metadata())
        assert endpoint.remote_size == SIZE
        assert f"by {kind}" in caplog.messages[-1]
        posted = sender.transport.post(endpoint, np.array([[0, 64, 16]]), b"note")
        assert sender.transport.poll(posted) is TransferState.DONE
        sender.transport.release(posted)
        assert target.transport.notifications() == [b"note"]
        assert (target.memory[64:80] == 7).all()
        sender.transport.disconnect(endpoint)
    assert "not by near: no loopback node" in caplog.messages[-1]


def test_a_peer_that_no_member_reaches_is_refused_with_every_reason() -> None:
    sender = Node("sender", {"near": LoopbackFabric(), "far": LoopbackFabric()})
    lone = Node("lone", {"far": LoopbackFabric()})
    with pytest.raises(TransportError, match="near: the peer does not offer it; not by far: no "):
        sender.transport.connect(lone.transport.metadata())
    with pytest.raises(TransportError, match="cannot be read"):
        sender.transport.connect(b"\xff")


def test_what_a_fence_asks_is_asked_of_every_member() -> None:
    node, severed = Node("node", {"near": LoopbackFabric(), "far": LoopbackFabric()}), []
    for number, member in enumerate(node.transport._members.values(), 1):
        member.sever = lambda number=number: severed.append(number)  # type: ignore[method-assign]
        member.sever_dead = lambda number=number: number  # type: ignore[method-assign]
        member.unread = lambda number=number: 10 * number  # type: ignore[method-assign]
    node.transport.sever()
    assert severed == [1, 2]
    assert (node.transport.sever_dead(), node.transport.unread()) == (3, 30)


def test_no_default_stands_before_what_members_say() -> None:
    asked = {name for name in vars(Transport) if not name.startswith("_")}
    assert asked <= set(vars(RoutedTransport))


def test_auto_on_a_host_without_gpu_is_nixl_alone() -> None:
    pytest.importorskip("nixl_cu13")
    transport = build_transport("auto", "node", torch.device("cpu"))
    try:
        memory = np.zeros(SIZE, dtype=np.uint8)
        transport.register(memory.ctypes.data, SIZE)
        assert list(json.loads(transport.metadata())) == ["nixl"]
    finally:
        transport.close()


def test_peer_copy_says_why_it_cannot_serve_host_memory() -> None:
    assert "peer_copy" in TRANSPORTS
    with pytest.raises(TransportError, match="host memory"):
        build_transport("peer_copy", "node", torch.device("cpu"))


def test_a_peer_address_survives_the_wire_and_other_bytes_do_not() -> None:
    address = PeerAddress(
        process=ProcessIdentity.own(),
        arenas=tuple(PeerArena(gpu, Export(bytes(range(64)), 512)) for gpu in ("GPU-1", "GPU-2")),
        size=1 << 40,
        stride=1 << 41,
        gate=Export(bytes(64), 0),
        mailbox=MailboxAddress("tasuki-1", b"sixteen bytes..!"),
    )
    assert PeerAddress.unpack(address.pack()) == address
    for wrong in (b"", b"[]", b"{}", address.pack().replace(b'"size"', b'"sighs"')):
        with pytest.raises(TransportError, match="cannot be read"):
            PeerAddress.unpack(wrong)
    packed = json.loads(address.pack())
    for change in (
        {"arenas": []},
        {"arenas": [["GPU-1", "00", 0]]},
        {"arenas": "GPU-1"},
        {"stride": (1 << 40) - 1},
        {"size": 0, "stride": 0},
    ):
        with pytest.raises(TransportError, match="cannot be read"):
            PeerAddress.unpack(json.dumps(packed | change).encode())


class OfRanks(LoopbackTransport):
    def register_ranks(self, arenas: object, size: int, stride: int) -> Region:
        return Region(0, size)


def test_ranks_with_a_gpu_each_go_by_what_reaches_them_all() -> None:
    arenas = [RankMemory(4096, b"", 0, "GPU-1")] * 2
    fabric = LoopbackFabric()
    one = LoopbackTransport(fabric, "one")
    with pytest.raises(TransportError, match="give --transport peer_copy"):
        one.register_ranks(arenas, 16, 32)
    both = RoutedTransport({"one": one, "ranks": OfRanks(fabric, "ranks")})
    assert both.register_ranks(arenas, 16, 32) == Region(0, 16)
    assert [*both._members] == ["ranks"]
    neither = RoutedTransport({"one": LoopbackTransport(fabric, "two")})
    with pytest.raises(TransportError, match="one: ranks with a GPU each"):
        neither.register_ranks(arenas, 16, 32)
