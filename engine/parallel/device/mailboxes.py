"""Every rank's mailbox on its own GPU, mapped by all others: what their kernels store into.

Owns this rank's, and the mappings of the others', until the process ends: a peer's kernel may be
under way there until then. Knows nothing of what travels. Made on the thread of the forward.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tasuki.engine.parallel.collectives import Exchange, RankSilent
from tasuki.transfer.transports.nvlink.cuda_ipc import CudaIpc, Export

from .exchange_kernels import PLACES, mailbox_bytes


@dataclass(frozen=True)
class Mailboxes:
    """addresses [ranks] int64 on the device: of every rank's mailbox, as this process has them
    mapped. state [PLACES + 1] int32 on the device, as kernels keep it. words [2] int32, pinned:
    whether a wait was given up here, and whether nobody is to wait any more."""

    rank: int
    addresses: Tensor
    state: Tensor
    words: Tensor

    @staticmethod
    def met(exchange: Exchange, rank: int, device: torch.device) -> "Mailboxes":
        """Once every rank has its own. Raises TransportError where memory cannot be shared."""
        torch.cuda.set_device(device)
        ipc = CudaIpc(torch.cuda.current_device())
        # Its size depends on the number of ranks, which this finds out.
        ranks = len(exchange(bytes(1)))
        size = mailbox_bytes(ranks)
        own = ipc.allocate(size)
        ipc.clear(own, size)
        addresses = [
            own if peer == rank else ipc.open(Export.unpacked(theirs)[0], size)
            for peer, theirs in enumerate(exchange(ipc.export(own).packed()))
        ]
        return Mailboxes(
            rank,
            torch.tensor(addresses, dtype=torch.int64, device=device),
            torch.zeros(PLACES + 1, dtype=torch.int32, device=device),
            torch.zeros(2, dtype=torch.int32, pin_memory=True),
        )

    @property
    def ranks(self) -> int:
        return len(self.addresses)

    def check(self) -> None:
        """Behind a forward. Raises RankSilent."""
        if self.words[0]:
            raise RankSilent(
                f"rank {self.rank} waited in vain for another rank inside a forward: its result is "
                "worthless, and no other forward can succeed; restart the node"
            )

    def abandon(self) -> None:
        """Have kernels wait for nobody any more, those under way too. From any thread."""
        self.words[1] = 1
