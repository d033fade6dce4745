"""Collectives of ranks that have a GPU each: one kernel, in CUDA graphs and outside of them.

A rank's part is stored into its peers' memory as it is, so a sum carries n - 1 times its bytes: for
two ranks as few as any way does. Nothing waits on the host. Thread rule: one stream.
"""

import triton
from torch import Tensor

from tasuki.utils.triton.dependent_launch import dependent

from .exchange_kernels import CHUNK_BYTES, PLACES, WARPS, exchange_kernel
from .mailboxes import Mailboxes

_SPINS_A_SECOND = 1_000_000
"""At most: a look at a flag takes a microsecond or a half."""
_MOST_SPINS = (1 << 31) - 1


class PeerCollectives:
    """As Collectives. timeout: seconds, and up to as many again, that a kernel waits for the
    slowest rank."""

    def __init__(self, mailboxes: Mailboxes, timeout: float) -> None:
        self._mailboxes = mailboxes
        self._spins = min(int(timeout * _SPINS_A_SECOND), _MOST_SPINS)

    def sum(self, partial: Tensor) -> Tensor:
        partial = partial.contiguous()
        self._launch(partial, partial, None)
        return partial

    def gather(self, partial: Tensor) -> Tensor:
        partial = partial.contiguous()
        columns = partial.shape[-1]
        output = partial.new_empty(*partial.shape[:-1], self._mailboxes.ranks * columns)
        self._launch(partial, output, columns)
        return output

    def of_leader(self, own: Tensor) -> Tensor:
        return self.gather(own.view(1, -1))[0, : own.numel()].view(own.shape)

    @property
    def begun(self) -> int:
        return 0

    def check(self) -> None:
        self._mailboxes.check()

    def abandon(self) -> None:
        self._mailboxes.abandon()

    def _launch(self, partial: Tensor, output: Tensor, columns: int | None) -> None:
        mailboxes, chunk = self._mailboxes, CHUNK_BYTES // partial.element_size()
        programs = min(triton.cdiv(partial.numel(), chunk), PLACES)
        exchange_kernel[(programs,)](
            partial,
            output,
            mailboxes.addresses,
            mailboxes.state,
            mailboxes.words.data_ptr(),
            partial.numel(),
            columns,
            self._spins,
            RANK=mailboxes.rank,
            RANKS=mailboxes.ranks,
            PLACES=PLACES,
            CHUNK=chunk,
            BYTES=CHUNK_BYTES,
            num_warps=WARPS,
            **dependent(partial),
        )
