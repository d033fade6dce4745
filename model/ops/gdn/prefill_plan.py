"""Division of a prompt forward into chunks for its GDN layers: the tables of their prefill kernels.

A segment is a run of one sequence's tokens up to a stored state. It is cut into chunks of at most
CHUNK tokens. So every stored state is at the end of a chunk and is the fp32 state itself. The plan
is built once per forward on the host, moved in one copy, and the same for every layer.
bfloat16 states are rounded, see `reference_rounding`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .reference_rounding import ROUNDED, chunk_bounds

CHUNK = 64


@dataclass(frozen=True)
class GdnPrefillPlan:
    """Tables of a forward's chunks for the GDN kernels, int32 on the device. The sequences' rows
    are laid end to end. A table's columns are listed here; "end" is one past the last.

    sequences [B, 6]: first row, read slot, first and end segment, first and end save (stored
    state). segments [G, 4]: first and end chunk, first and end save. chunks [N, 4]: first row,
    number of tokens (1 to CHUNK), first row of its sequence, read slot of its sequence. saves [S,
    2]: number of its sequence's tokens before it, slot; ascending within a sequence; a save into
    the sequence's read slot comes last among equals. ends [N]: tokens of the sequence up to each
    chunk's end, those before this forward included.
    """

    tokens: int
    sequences: Tensor
    segments: Tensor
    chunks: Tensor
    saves: Tensor
    ends: Tensor


@dataclass(frozen=True)
class GdnPrefillPlans:
    """The plans of one forward, one for each dtype of states. A plan is made at its first use.
    Fields: see plan_gdn_prefill()."""

    lengths: tuple[int, ...]
    read_slots: tuple[int, ...]
    saves: tuple[tuple[int, int, int], ...]
    before: tuple[int, ...]
    device: torch.device

    def of_states(self, dtype: torch.dtype) -> GdnPrefillPlan:
        """Return the plan for states of this dtype."""
        return self._rounded if dtype == ROUNDED else self._exact

    @cached_property
    def _exact(self) -> GdnPrefillPlan:
        return self._plan(torch.float32)

    @cached_property
    def _rounded(self) -> GdnPrefillPlan:
        return self._plan(ROUNDED)

    def _plan(self, states: torch.dtype) -> GdnPrefillPlan:
        tables = self.lengths, self.read_slots, self.saves, self.before
        return plan_gdn_prefill(*tables, states, self.device)


def plan_gdn_prefill(
    lengths: Sequence[int],
    read_slots: Sequence[int],
    saves: Sequence[tuple[int, int, int]],
    before: Sequence[int],
    states: torch.dtype,
    device: torch.device | str,
) -> GdnPrefillPlan:
    """Divide a forward's sequences into chunks, and return the plan. lengths: tokens of each
    sequence; read_slots: its slot of the state before. saves: states to store, as (sequence, tokens
    of this forward before the state, slot), final states included. before: tokens of each sequence
    before this forward. states: dtype of the states; bfloat16 ones are rounded at every multiple of
    CHUNK tokens of a sequence, so chunks end there.

    Raises ValueError for a save outside its sequence. The copy to the device is asynchronous.
    """
    by_sequence: list[list[tuple[int, int]]] = [[] for _ in lengths]
    for sequence, offset, slot in saves:
        if not 0 < offset <= lengths[sequence]:
            raise ValueError(
                f"a state after {offset} tokens of sequence {sequence}, which has "
                f"{lengths[sequence]} in this forward; store it in the forward that reaches it"
            )
        by_sequence[sequence].append((offset, slot))
    sequence_rows: list[int] = []
    segment_rows: list[int] = []
    chunk_rows: list[int] = []
    save_rows: list[int] = []
    ends: list[int] = []
    row = 0
    columns = zip(lengths, read_slots, before, strict=True)
    for sequence, (length, read_slot, earlier) in enumerate(columns):
        marks = sorted(by_sequence[sequence], key=lambda mark: (mark[0], mark[1] == read_slot))
        first_segment, first_save = len(segment_rows) // 4, len(save_rows) // 2
        begin = 0
        for end in sorted({length, *(offset for offset, _ in marks)}):
            ending = [mark for mark in marks if mark[0] == end]
            chunk, save = len(chunk_rows) // 4, len(save_rows) // 2
            aligned = earlier if states == ROUNDED else None
            for start, stop in chunk_bounds(begin, end, aligned):
                chunk_rows += (row + start, stop - start, row, read_slot)
                ends.append(earlier + stop)
            for mark in ending:
                save_rows += mark
            segment_rows += (chunk, len(chunk_rows) // 4, save, save + len(ending))
            begin = end
        sequence_rows += (
            *(row, read_slot, first_segment, len(segment_rows) // 4),
            *(first_save, len(save_rows) // 2),
        )
        row += length
    sequence_table, segment_table, chunk_table, save_table, end_table = _tables(
        ((sequence_rows, 6), (segment_rows, 4), (chunk_rows, 4), (save_rows, 2), (ends, 1)), device
    )
    return GdnPrefillPlan(
        tokens=row,
        sequences=sequence_table,
        segments=segment_table,
        chunks=chunk_table,
        saves=save_table,
        ends=end_table.flatten(),
    )


def _tables(
    tables: Sequence[tuple[list[int], int]], device: torch.device | str
) -> tuple[Tensor, ...]:
    """Copy several tables, each (entries, columns), to the device together. Return each as [rows,
    columns] int32."""
    packed: list[int] = []
    begins: list[int] = []
    for entries, _ in tables:
        begins.append(len(packed))
        packed += entries
        # Triton compiles for the alignment of a pointer, and no forward should wait for that. So
        # every table begins at a multiple of 16 bytes.
        packed += [0] * (-len(packed) % 4)
    host = torch.tensor(packed, dtype=torch.int32)
    if torch.device(device).type == "cuda":
        host = host.pin_memory()
    moved = host.to(device, non_blocking=True)
    return tuple(
        moved[begin : begin + len(entries)].view(-1, columns)
        for begin, (entries, columns) in zip(begins, tables, strict=True)
    )
