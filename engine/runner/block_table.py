"""The page table of the decoding rows on a GPU, kept between steps: a step copies what is new.

Owns the table, who sits in which row and what each row says. Thread rule and copies: as in
device_rows.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from tasuki.engine.forward_plan import Work
from tasuki.pycache._cpp_cache import Lease


class PageTable:
    """table [rows, pages] int32; of a row only the pages of its lease mean anything."""

    def __init__(self, rows: int, pages: int, device: torch.device) -> None:
        self.table = torch.zeros(rows, pages, dtype=torch.int32, device=device)
        self._pages: list[NDArray[np.int32]] = [np.empty(0, dtype=np.int32)] * rows
        self._seated: list[Lease] = []

    def seat(self, work: Sequence[Work]) -> list[Work]:
        """The work by row. Who stays in the batch keeps its row where it can; each row's pages are
        in the table from here on in the stream."""
        waiting = {id(item.active.lease): item for item in work}
        rows: list[Work | None] = [
            waiting.pop(id(lease), None) for lease in self._seated[: len(work)]
        ]
        rows += [None] * (len(work) - len(rows))
        newcomers = iter(waiting.values())
        seated = [next(newcomers) if item is None else item for item in rows]
        for row, item in enumerate(seated):
            self._write(row, item.active.lease.pages)
        # Held, not only named: an id() may return once its object is gone.
        self._seated = [item.active.lease for item in seated]
        return seated

    def _write(self, row: int, pages: NDArray[np.int32]) -> None:
        held = self._pages[row]
        common = min(len(held), len(pages))
        changed = np.flatnonzero(held[:common] != pages[:common])
        first = int(changed[0]) if len(changed) else common
        if first == len(pages):
            return
        fresh = torch.empty(len(pages) - first, dtype=torch.int32, pin_memory=True)
        fresh.numpy()[:] = pages[first:]
        self.table[row, first : len(pages)].copy_(fresh, non_blocking=True)
        self._pages[row] = pages.copy()
