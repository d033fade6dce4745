"""The gate before an arena that others map: a word in GPU memory which says who may still write.

CUDA cannot take a mapping back from a process that lives, so writers ask: their kernels read the
word first, and write only where it is still what they were given when they connected. Owns the
word. Thread rule: any thread. Invariants: a permission that was shut is never valid again; what a
kernel reads is the word as it is then, not as it was launched.
"""

import secrets

from .cuda_ipc import CudaIpc, Export

# An allocation of its own: the driver shares blocks of this size between smaller ones.
_ALLOCATION_BYTES = 2 << 20
# As an argument of a kernel it must never fit 32 bits, or the kernel would be compiled anew.
NOBODY = 1 << 40
"""A permission that no gate ever gives."""


class PeerGate:
    def __init__(self, ipc: CudaIpc) -> None:
        self._ipc = ipc
        self.address = ipc.allocate(_ALLOCATION_BYTES)
        self.shut()

    @property
    def export(self) -> Export:
        return self._ipc.export(self.address)

    def shut(self) -> None:
        """Kernels that begin from now on with a permission of before write nothing."""
        self._ipc.write_word(self.address, NOBODY + 1 + secrets.randbits(60))

    def close(self) -> None:
        """REQUIRES: once. Peers that map it keep it."""
        self._ipc.free(self.address)
