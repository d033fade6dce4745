"""The gated delta rule over a batch with state slots: single tokens together, longer runs by
chunks."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .gdn_chunked import CHUNK_TOKENS, chunk_gated_delta_rule
from .gdn_recurrent import recurrent_step


@dataclass(frozen=True)
class SinglesPlan:
    """Sequences of one token: rows [N] in the batch, read_slots [N]; of their next states row
    save_rows[i] goes to save_slots[i]. All int64."""

    rows: Tensor
    read_slots: Tensor
    save_rows: Tensor
    save_slots: Tensor


@dataclass(frozen=True)
class RunPlan:
    """A sequence of several tokens, cut into chunks at every state that is to be stored.

    rows [chunks, CHUNK_TOKENS] int64: row in the batch of each token; padding repeats a row of the
    run. valid: the same shape, bool. keep: ascending chunks whose end states are wanted; row
    save_rows[i] of those goes to save_slots[i] (int64).
    """

    rows: Tensor
    valid: Tensor
    read_slot: int
    keep: tuple[int, ...]
    save_rows: Tensor
    save_slots: Tensor


@dataclass(frozen=True)
class GdnPlan:
    """The same for every layer of a forward."""

    singles: SinglesPlan | None
    runs: tuple[RunPlan, ...]


def plan_gdn(
    lengths: Sequence[int], read_slots: Tensor, saves: Sequence[tuple[int, int, int]]
) -> GdnPlan:
    """saves: (sequence, tokens of this forward, slot)."""

    def ints(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=read_slots.device)

    starts = [sum(lengths[:sequence]) for sequence in range(len(lengths))]
    single = [sequence for sequence, length in enumerate(lengths) if length == 1]
    singles = None
    if single:
        row_of = {sequence: row for row, sequence in enumerate(single)}
        stored = [(row_of[sequence], slot) for sequence, _, slot in saves if sequence in row_of]
        singles = SinglesPlan(
            rows=ints([starts[sequence] for sequence in single]),
            read_slots=read_slots[ints(single)],
            save_rows=ints([row for row, _ in stored]),
            save_slots=ints([slot for _, slot in stored]),
        )
    runs = []
    for sequence, length in enumerate(lengths):
        if length > 1:
            marks = sorted((offset, slot) for owner, offset, slot in saves if owner == sequence)
            runs.append(_plan_run(starts[sequence], length, read_slots[sequence], marks))
    return GdnPlan(singles, tuple(runs))


def _plan_run(
    start: int, length: int, read_slot: Tensor, marks: Sequence[tuple[int, int]]
) -> RunPlan:
    def ints(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=read_slot.device)

    rows: list[Tensor] = []
    valid: list[Tensor] = []
    ends: dict[int, int] = {}
    within = torch.arange(CHUNK_TOKENS, device=read_slot.device)
    begin = 0
    for end in sorted({length, *(offset for offset, _ in marks)}):
        for first in range(begin, end, CHUNK_TOKENS):
            rows.append(start + (first + within).clamp(max=end - 1))
            valid.append(first + within < end)
        begin = end
        ends[end] = len(rows) - 1
    # The final state is often wanted twice: as the working slot's and as a checkpoint.
    keep = sorted({ends[offset] for offset, _ in marks})
    return RunPlan(
        rows=torch.stack(rows),
        valid=torch.stack(valid),
        read_slot=int(read_slot),
        keep=tuple(keep),
        save_rows=ints([keep.index(ends[offset]) for offset, _ in marks]),
        save_slots=ints([slot for _, slot in marks]),
    )


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, plan: GdnPlan
) -> Tensor:
    """o [T, heads, value_dim] float32; stores the states that plan asks for.

    q, k [T, heads, key_dim] float32, of unit length, q scaled; v [T, heads, value_dim] float32; g,
    beta [T, heads] float32; state [slots, heads, value_dim, key_dim] of any float dtype.
    """
    output = torch.empty_like(v)
    if plan.singles is not None:
        rows = plan.singles.rows
        before = state.index_select(0, plan.singles.read_slots).float()
        output[rows], after = recurrent_step(
            *(x.index_select(0, rows) for x in (q, k, v, g, beta)), before
        )
        stored = after.index_select(0, plan.singles.save_rows).to(state.dtype)
        state.index_copy_(0, plan.singles.save_slots, stored)
    for run in plan.runs:
        valid = run.valid[..., None]
        chunked, kept = chunk_gated_delta_rule(
            _chunks(q, run),
            _chunks(k, run),
            _chunks(v, run),
            _chunks(g, run).where(valid, 0),
            _chunks(beta, run).where(valid, 0),
            state[run.read_slot].float(),
            run.keep,
        )
        output[run.rows[run.valid]] = chunked[run.valid]
        stored = kept.index_select(0, run.save_rows).to(state.dtype)
        state.index_copy_(0, run.save_slots, stored)
    return output


def _chunks(x: Tensor, run: RunPlan) -> Tensor:
    """[T, ...] to [chunks, CHUNK_TOKENS, ...]."""
    return x.index_select(0, run.rows.flatten()).view(*run.rows.shape, *x.shape[1:])
