"""The arenas of ranks that have a GPU each, as the leader's process has them mapped: it alone sends
from them and receives into them, by peers' processes that map them too.

The mappings last until the process ends: a kernel of a peer, or a digest, may be under way there
until then. Called on the thread of the forward, on every rank.
"""

import torch
from torch import Tensor

from tasuki.engine.parallel.collectives import Exchange
from tasuki.transfer.transports.base import RankMemory
from tasuki.transfer.transports.nvlink.cuda_ipc import CudaIpc, Export


def exchanged_arenas(exchange: Exchange, rank: int, arena: Tensor) -> list[RankMemory]:
    """Every rank's, in rank order; of the leader's process, mapped there. arena: this rank's bytes,
    as many as every rank's. Raises TransportError where memory cannot be shared."""
    ipc = CudaIpc(arena.get_device())
    gpu = str(torch.cuda.get_device_properties(arena.device).uuid)
    found = []
    packed = ipc.export(arena.data_ptr()).packed() + gpu.encode()
    for peer, theirs in enumerate(exchange(packed)):
        export, of_gpu = Export.unpacked(theirs)
        address = arena.data_ptr()
        if peer != rank:
            # A follower maps nobody: it sends nothing.
            address = ipc.open(export, arena.nbytes) if rank == 0 else 0
        found.append(RankMemory(address, export.handle, export.offset, of_gpu.decode()))
    return found
