"""A peer can reach the arena and nothing else. A wrong index is its sender's error and crashes no
process. No log has the keys to a node's memory."""

import numpy as np
import pytest
import torch

from tasuki.transfer.chunks.descriptors import TransferUnits
from tasuki.transfer.data_plane import DataPlane
from tasuki.transfer.errors import TransportError
from tasuki.transfer.transports.base import Region
from tasuki.transfer.transports.loopback import LoopbackFabric, LoopbackTransport
from tasuki.transfer.transports.nixl import transport as nixl
from tasuki.transfer.transports.nixl.transport import NixlTransport, installed_package
from tests.harness.loopback_pair import POISON, small_layout
from tests.harness.waiting import until

needs_nixl = pytest.mark.skipif(installed_package() is None, reason="NIXL is not installed")
SLABS = 3


class Recording(LoopbackTransport):
    """A transport that records the registered regions."""

    def __init__(self) -> None:
        super().__init__(LoopbackFabric(), "alone")
        self.regions: list[Region] = []

    def register(self, address: int, size: int, units: TransferUnits | None = None) -> Region:
        self.regions.append(Region(address, size))
        return super().register(address, size, units)


def test_the_arena_is_registered_and_nothing_else() -> None:
    layout, transport = small_layout(), Recording()
    # An arena inside a larger allocation; peers must not reach the memory around it.
    around = torch.zeros((SLABS + 2) * layout.slab_bytes, dtype=torch.uint8)
    arena = around[layout.slab_bytes : -layout.slab_bytes]
    DataPlane.over(arena, layout, "weights", transport, "loopback", "node")
    assert transport.regions == [Region(around.data_ptr() + layout.slab_bytes, arena.nbytes)]


@needs_nixl
def test_a_write_beside_the_arena_is_refused_even_without_our_own_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second check is the transport's own, by the bounds in the peer's metadata."""
    size, edge = 1 << 16, 1 << 12
    memories = [np.full(size + 2 * edge, POISON, dtype=np.uint8) for _ in range(2)]
    transports = [NixlTransport("source"), NixlTransport("target")]
    source, target = transports
    for transport, memory in zip(transports, memories, strict=True):
        transport.register(memory.ctypes.data + edge, size)
    try:
        endpoint = source.connect(target.metadata())
        monkeypatch.setattr(nixl, "check_bounds", lambda *_: None)
        memories[0][:] = 0
        for offset in (-edge, size, size - 8, 2**40, -(2**40)):
            with pytest.raises(TransportError, match=r"could not post|refused"):
                source.post(endpoint, np.array([[0, offset, 64]], dtype=np.int64), b"beside")
        assert (memories[1] == POISON).all()
        # Valid writes still work.
        transfer = source.post(endpoint, np.array([[0, 0, 64]], dtype=np.int64), b"inside")
        arrived: list[bytes] = []

        def has_arrived() -> bool:
            source.poll(transfer)
            arrived.extend(target.notifications())
            return bool(arrived)

        until(has_arrived, "the notification did not come")
        source.release(transfer)
        assert arrived == [b"inside"]
        assert (memories[1][edge : edge + 64] == 0).all()
        assert (memories[1][edge + 64 :] == POISON).all()
    finally:
        for transport in transports:
            transport.close()


def test_what_opens_a_nodes_memory_is_in_no_text() -> None:
    layout, transport = small_layout(), Recording()
    arena = torch.zeros(SLABS * layout.slab_bytes, dtype=torch.uint8)
    plane = DataPlane.over(arena, layout, "weights", transport, "loopback", "node")
    (address,) = plane.node.arenas
    assert address.transport_metadata
    assert repr(address.transport_metadata) not in repr(plane.node)
    assert "transport_metadata" not in str(plane.node)
