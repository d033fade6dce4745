"""The digests of a job's pages and slot as they lie in a GPU's arena, summed as they land."""

from collections.abc import Sequence

import torch

from tasuki.pycache.arena import Arena

from .streams import recorded
from .word_digest import add_rows, digests_of, rows_of_job


class ArenaSums:
    """Thread rule: one thread, with one stream as the current one, which work joins."""

    def __init__(self, arena: Arena, pages: Sequence[int], slot: int | None) -> None:
        """pages, slot: of the arena. What the digests need from the host goes to the GPU here: a
        small copy between two large ones would make the link wait for it."""
        device = arena.bytes.device
        rows = torch.from_numpy(rows_of_job(arena.layout, pages, slot)).pin_memory()
        self._words = arena.bytes.view(torch.int64)
        self._rows = rows.to(device, non_blocking=True)
        self._sums = torch.zeros(len(pages) + 1, 2, dtype=torch.int64, device=device)
        self._has_slot = slot is not None

    def add(self, first: int, end: int) -> None:
        """Of the job's rows, in the order of rows_of_job(), what lies there now."""
        add_rows(self._words, self._rows[:, first:end], self._sums)

    def add_all(self) -> None:
        self.add(0, self._rows.shape[1])

    def digests(self) -> tuple[list[int], int | None]:
        """As of `RunningCopy`. Waits. REQUIRES: each row was added once."""
        found = torch.empty(self._sums.shape, dtype=self._sums.dtype, pin_memory=True)
        found.copy_(self._sums, non_blocking=True)
        recorded().synchronize()
        *pages, slot = digests_of(found.numpy())
        return pages, slot if self._has_slot else None
