"""One node's way into hand-overs: its registered arena, the digester over it, its contract and
name."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..pycache.layout import CacheLayout
from .contract import Contract
from .digest import WindowDigester
from .node_identity import NodeIdentity
from .transports.base import Transport


@dataclass(frozen=True)
class DataPlane:
    """Closing the transport ends it; nothing here owns the arena's memory."""

    transport: Transport
    digester: WindowDigester
    contract: Contract
    node: NodeIdentity

    @staticmethod
    def over(
        memory: NDArray[np.uint8],
        layout: CacheLayout,
        weights_digest: str,
        transport: Transport,
        kind: str,
        name: str,
    ) -> "DataPlane":
        """memory: the arena's bytes, uint8 [slabs * slab_bytes], registered here and nothing else.

        Raises TransportError.
        """
        slabs = memory.nbytes // layout.slab_bytes
        transport.register(memory.ctypes.data, memory.nbytes)
        return DataPlane(
            transport,
            WindowDigester(memory, layout),
            Contract(weights_digest, layout),
            NodeIdentity.new(name, kind, transport, slabs),
        )
