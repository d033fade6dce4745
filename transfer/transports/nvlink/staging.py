"""Tables of windows on their way to the GPU, and the flags by which it says that they are stored.

Owns pinned host memory, its device twin and one event a table. Knows no peers. Thread rule: the
transport's lock. Invariant: a table is used again only after its event has passed.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from .store_kernel import table_words

# More than a chunk's pages in a few layers; rarer, larger windows get a table of their own size.
PIECES = 1024
_TABLES = 16


class Table:
    """host [words] int64, pinned, and device, its copy; flag [1] int32, pinned: 1 once stored."""

    def __init__(self, pieces: int, device: torch.device) -> None:
        self.pieces = pieces
        words = table_words(pieces)
        self._pinned = torch.zeros(words, dtype=torch.int64, pin_memory=True)
        self._flag = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self.host: NDArray[np.int64] = self._pinned.numpy()
        self.flag: NDArray[np.int32] = self._flag.numpy()
        self.device = torch.zeros(words, dtype=torch.int64, device=device)
        self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]

    @property
    def flag_address(self) -> int:
        return self._flag.data_ptr()

    @property
    def passed(self) -> bool:
        """Whether the GPU is through with it; never waits."""
        over: bool = self.event.query()  # type: ignore[no-untyped-call]
        return over

    def send(self) -> None:
        """To the device, on the current stream."""
        # All of it: some KiB more cost less than two views.
        self.device.copy_(self._pinned, non_blocking=True)


class Staging:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free = [Table(PIECES, device) for _ in range(_TABLES)]
        self._busy: list[Table] = []

    def take(self, pieces: int) -> Table:
        """A table that holds that many pieces and that nothing uses; its flag is down."""
        table = self._free_for(pieces)
        if table is None:
            self._collect()
            table = self._free_for(pieces)
        if table is None:
            table = Table(max(PIECES, 1 << (pieces - 1).bit_length()), self._device)
        table.flag[0] = 0
        return table

    def _free_for(self, pieces: int) -> Table | None:
        """The smallest that is known to be free and fits, taken out."""
        fitting = [table for table in self._free if table.pieces >= pieces]
        if not fitting:
            return None
        table = min(fitting, key=lambda t: t.pieces)
        self._free.remove(table)
        return table

    def give_back(self, table: Table) -> None:
        """Its launch may still be under way."""
        self._busy.append(table)

    def _collect(self) -> None:
        passed = [table for table in self._busy if table.passed]
        self._busy = [table for table in self._busy if table not in passed]
        self._free += passed
