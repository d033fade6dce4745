"""The block table of the decoding rows on a GPU, kept between steps: a step copies what is new.

Owns the table, who sits in which row and how much of each row is written. Thread rule and copies:
as in device_batch.
"""

from collections.abc import Sequence
from operator import is_

import torch

from .sequence_states import SequencePages


class BlockTable:
    """table [rows, pages] int32; of a row only the pages of its sequence mean anything."""

    def __init__(self, rows: int, pages: int, device: torch.device) -> None:
        self.table = torch.zeros(rows, pages, dtype=torch.int32, device=device)
        self._seated: list[SequencePages] = []
        self._written: list[int] = []

    def seat(self, sequences: Sequence[SequencePages]) -> list[int]:
        """Which of the sequences, by number, sits in each row. Who stays in the batch keeps its row
        where it can; each row's pages are in the table from here on in the stream."""
        if len(sequences) == len(self._seated) and all(map(is_, sequences, self._seated)):
            order = list(range(len(sequences)))
        else:
            order = self._reseat(sequences)
        for row, number in enumerate(order):
            ids = sequences[number].ids
            if len(ids) > self._written[row]:
                self._write(row, sequences[number])
        return order

    def _reseat(self, sequences: Sequence[SequencePages]) -> list[int]:
        waiting = {id(pages): number for number, pages in enumerate(sequences)}
        kept = [waiting.pop(id(pages), None) for pages in self._seated[: len(sequences)]]
        kept += [None] * (len(sequences) - len(kept))
        newcomers = iter(waiting.values())
        order = [next(newcomers) if number is None else number for number in kept]
        self._written = [
            0 if number is None else written
            for number, written in zip(kept, self._written + [0] * len(sequences), strict=False)
        ]
        # Held, not only named: an id() may return once its object is gone.
        self._seated = [sequences[number] for number in order]
        return order

    def _write(self, row: int, pages: SequencePages) -> None:
        first, last = self._written[row], len(pages.ids)
        fresh = torch.empty(last - first, dtype=torch.int32, pin_memory=True)
        fresh.numpy()[:] = pages.ids[first:]
        self.table[row, first:last].copy_(fresh, non_blocking=True)
        self._written[row] = last
