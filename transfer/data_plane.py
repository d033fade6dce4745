"""One node's way into hand-overs: its registered arena, the digester over it, whence windows leave
and how they arrive, its contract and name.

Where the wire is not exact, the arena's last slabs are kept back for windows on their way out.
"""

from dataclasses import dataclass

import torch

from ..pycache.layout import CacheLayout
from .contract import NOT_USED, Contract
from .digest import Digester, WindowDigester
from .failpoints import warn_if_armed
from .grain import Grain
from .inlet import Inlet
from .layer_codec import build_codec
from .node_identity import NodeIdentity
from .outlet import DirectOutlet, Outlet
from .staged_outlet import StagedOutlet
from .staging_cells import StagingCells
from .transports.base import Transport
from .wire_settings import WireSettings
from .wire_units import WireUnits


@dataclass(frozen=True)
class DataPlane:
    """Closing the transport ends it; nothing here owns the arena's memory."""

    transport: Transport
    digester: Digester
    outlet: Outlet
    inlet: Inlet | None
    """None where windows arrive as they are to lie."""
    slabs: int
    """Of the arena, those that a cache may own: all but the last ones kept back."""
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
        wire: WireSettings | None = None,
    ) -> "DataPlane":
        """memory: the arena's bytes, uint8 [slabs * slab_bytes] on any device, registered here and
        nothing else. wire: exact by default.

        Raises TransportError, WireError.
        """
        warn_if_armed()
        wire = wire or WireSettings()
        units = WireUnits.of(layout, wire.precision)
        slabs = memory.nbytes // layout.slab_bytes
        slabs -= wire.slabs_kept_back(units, slabs)
        transport.register(memory.data_ptr(), memory.nbytes, Grain.of(layout))
        digester = build_digester(memory, layout, units)
        code = wire.precision.code
        outlet: Outlet = DirectOutlet(layout, digester)
        inlet = None
        if not wire.precision.exact:
            first = slabs * layout.slab_bytes
            cells = StagingCells(first, memory.nbytes - first, units.largest_encoded)
            codec = build_codec(memory, units)
            outlet = StagedOutlet(units, code, codec, digester, cells)
            inlet = Inlet(units, code, codec)
        return DataPlane(
            transport,
            digester,
            outlet,
            inlet,
            slabs,
            Contract(
                weights_digest,
                layout,
                wire_kv=wire.precision.kv.value,
                wire_state=wire.precision.state.value,
                nixl=transport.libraries.get("nixl", NOT_USED),
                ucx=transport.libraries.get("ucx", NOT_USED),
            ),
            NodeIdentity.new(name, kind, transport, slabs),
        )


def build_digester(memory: torch.Tensor, layout: CacheLayout, units: WireUnits) -> Digester:
    """Of what travels of that arena."""
    if memory.device.type == "cpu":
        return WindowDigester(memory.numpy(), layout, units)
    from .kernels.digest import GpuWindowDigester

    return GpuWindowDigester(memory, layout, units)
