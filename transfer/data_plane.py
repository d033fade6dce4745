"""One node's way into hand-overs: its registered arena, the digester over it, its contract and
name."""

from dataclasses import dataclass

import torch

from ..pycache.layout import CacheLayout
from .contract import Contract
from .digest import Digester, WindowDigester
from .failpoints import warn_if_armed
from .grain import Grain
from .node_identity import NodeIdentity
from .transports.base import Transport


@dataclass(frozen=True)
class DataPlane:
    """Closing the transport ends it; nothing here owns the arena's memory."""

    transport: Transport
    digester: Digester
    contract: Contract
    node: NodeIdentity

    @staticmethod
    def over(
        memory: torch.Tensor,
        layout: CacheLayout,
        weights_digest: str,
        transport: Transport,
        kind: str,
        name: str,
    ) -> "DataPlane":
        """memory: the arena's bytes, uint8 [slabs * slab_bytes] on any device, registered here and
        nothing else.

        Raises TransportError.
        """
        warn_if_armed()
        slabs = memory.nbytes // layout.slab_bytes
        transport.register(memory.data_ptr(), memory.nbytes, Grain.of(layout))
        return DataPlane(
            transport,
            _digester(memory, layout),
            Contract(weights_digest, layout),
            NodeIdentity.new(name, kind, transport, slabs),
        )


def _digester(memory: torch.Tensor, layout: CacheLayout) -> Digester:
    if memory.device.type == "cpu":
        return WindowDigester(memory.numpy(), layout)
    from .kernels.digest import GpuWindowDigester

    return GpuWindowDigester(memory, layout)
