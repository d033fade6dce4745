"""The gated delta rule over state slots, in PyTorch. Sequences of one token are computed together,
longer ones by chunks, and stepped ones token by token, as in decode steps.

DeltaRule: the two forms of one rule. HEAD_DECAY has one decay a head, CHANNEL_DECAY one a key
channel.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from tasuki.model.forward import Batch

from .reference_channels import channel_step, chunk_channel_delta_rule
from .reference_chunked import CHUNK_TOKENS, Settle, chunk_gated_delta_rule
from .reference_recurrent import recurrent_step
from .reference_rounding import ROUNDED, StateRounding, chunk_bounds


class DeltaStep(Protocol):
    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Apply the rule to one token of each of N sequences, see recurrent_step()."""


class DeltaChunks(Protocol):
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        state: Tensor,
        keep: Sequence[int],
        settle: Settle,
    ) -> tuple[Tensor, Tensor]:
        """Apply the rule to N chunks of one sequence, see chunk_gated_delta_rule()."""


@dataclass(frozen=True)
class DeltaRule:
    """A gated delta rule, token by token and in chunks. The two give equal results but for
    rounding."""

    step: DeltaStep
    chunks: DeltaChunks


HEAD_DECAY = DeltaRule(recurrent_step, chunk_gated_delta_rule)
CHANNEL_DECAY = DeltaRule(channel_step, chunk_channel_delta_rule)


@dataclass(frozen=True)
class SinglesPlan:
    """Plan of all sequences of one token. rows [N]: their rows in the batch; read_slots [N]: slots
    of their states before; counts [N]: tokens in the states after. The next state of sequence
    save_rows[i] of these N goes to slot save_slots[i]. All are int64."""

    rows: Tensor
    read_slots: Tensor
    counts: Tensor
    save_rows: Tensor
    save_slots: Tensor


@dataclass(frozen=True)
class RunPlan:
    """Plan of one sequence of several tokens, divided into chunks at every stored state.

    rows [chunks, CHUNK_TOKENS] int64: row in the batch of each token; padding repeats a row of the
    sequence. valid: the same shape, bool, false for padding. counts [chunks] int64: tokens in the
    state after each chunk. keep: ascending numbers of the chunks with stored end states. The end
    state of chunk keep[save_rows[i]] goes to slot save_slots[i] (int64).
    """

    rows: Tensor
    valid: Tensor
    counts: Tensor
    read_slot: int
    keep: tuple[int, ...]
    save_rows: Tensor
    save_slots: Tensor


@dataclass(frozen=True)
class SteppedPlan:
    """Plan of one sequence of several tokens, computed one by one: rows [start, stop) of the batch.
    before: tokens of the sequence before them. read_slot: slot of the state before. saves: states
    to store, as pairs (tokens of this forward before the state, slot)."""

    start: int
    stop: int
    before: int
    read_slot: int
    saves: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class GdnPlan:
    """Plan of the gated delta rule in one forward, the same for every layer."""

    singles: SinglesPlan | None
    runs: tuple[RunPlan, ...]
    stepped: tuple[SteppedPlan, ...] = ()


@dataclass(frozen=True)
class GdnPlans:
    """The plans of one forward, one for each dtype of states. A plan is made at its first use.
    Fields: see plan_gdn()."""

    lengths: tuple[int, ...]
    read_slots: Tensor
    saves: tuple[tuple[int, int, int], ...]
    before: tuple[int, ...]
    stepped: frozenset[int]

    @staticmethod
    def of(batch: Batch) -> "GdnPlans":
        return GdnPlans(
            lengths=tuple(batch.cu_seqlens.diff().tolist()),
            read_slots=batch.read_slots,
            saves=tuple(batch.saves()),
            before=tuple(batch.context_lens.tolist()),
            stepped=batch.stepped,
        )

    def of_states(self, dtype: torch.dtype) -> GdnPlan:
        """Return the plan for states of this dtype."""
        return self._rounded if dtype == ROUNDED else self._exact

    @cached_property
    def _exact(self) -> GdnPlan:
        return self._plan(torch.float32)

    @cached_property
    def _rounded(self) -> GdnPlan:
        return self._plan(ROUNDED)

    def _plan(self, states: torch.dtype) -> GdnPlan:
        return plan_gdn(
            self.lengths, self.read_slots, self.saves, self.stepped, self.before, states
        )


def plan_gdn(
    lengths: Sequence[int],
    read_slots: Tensor,
    saves: Sequence[tuple[int, int, int]],
    stepped: Collection[int],
    before: Sequence[int],
    states: torch.dtype,
) -> GdnPlan:
    """Return the plan of the gated delta rule for a forward. lengths: tokens of each sequence.
    saves: states to store, as (sequence, tokens of this forward before the state, slot). stepped:
    indices of sequences computed token by token. Sequences of one token always are. before: tokens
    of each sequence before this forward. states: dtype of the states."""

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
            counts=ints([before[sequence] + 1 for sequence in single]),
            save_rows=ints([row for row, _ in stored]),
            save_slots=ints([slot for _, slot in stored]),
        )
    runs, steps = [], []
    for sequence, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        if length == 1:
            continue
        marks = sorted((offset, slot) for owner, offset, slot in saves if owner == sequence)
        if sequence in stepped:
            slot = int(read_slots[sequence])
            place = start, start + length, before[sequence]
            steps.append(SteppedPlan(*place, slot, tuple(marks)))
        else:
            earlier = before[sequence]
            aligned = earlier if states == ROUNDED else None
            run = start, length, earlier, aligned
            runs.append(_plan_run(*run, read_slots[sequence], marks))
    return GdnPlan(singles, tuple(runs), tuple(steps))


def _plan_run(
    start: int,
    length: int,
    before: int,
    aligned: int | None,
    read_slot: Tensor,
    marks: Sequence[tuple[int, int]],
) -> RunPlan:
    """Return the plan of the rows [start, start + length). before: tokens of the sequence before
    them. aligned: as `before` of chunk_bounds(). marks: states to store."""

    def ints(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=read_slot.device)

    rows: list[Tensor] = []
    valid: list[Tensor] = []
    counts: list[int] = []
    ends: dict[int, int] = {}
    within = torch.arange(CHUNK_TOKENS, device=read_slot.device)
    begin = 0
    for end in sorted({length, *(offset for offset, _ in marks)}):
        for first, stop in chunk_bounds(begin, end, aligned):
            rows.append(start + (first + within).clamp(max=stop - 1))
            valid.append(first + within < stop)
            counts.append(before + stop)
        begin = end
        ends[end] = len(rows) - 1
    # The final state is often wanted twice: for the working slot and for a checkpoint.
    keep = sorted({ends[offset] for offset, _ in marks})
    return RunPlan(
        rows=torch.stack(rows),
        valid=torch.stack(valid),
        counts=ints(counts),
        read_slot=int(read_slot),
        keep=tuple(keep),
        save_rows=ints([keep.index(ends[offset]) for offset, _ in marks]),
        save_slots=ints([slot for _, slot in marks]),
    )


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    plan: GdnPlan,
    rounding: StateRounding,
    rule: DeltaRule = HEAD_DECAY,
) -> Tensor:
    """Apply the gated delta rule to a forward, and store the planned states. Return its outputs [T,
    heads, value_dim] float32.

    q, k: [T, heads, key_dim] float32, of unit length, q scaled. v: [T, heads, value_dim] float32. g
    (log decay), beta: [T, heads] float32; with CHANNEL_DECAY, g is [T, heads, key_dim]. state:
    [slots, heads, value_dim, key_dim] float32 or bfloat16. plan: for states of this dtype.
    rounding: of bfloat16 states.
    """

    def stored(states: Tensor, counts: Tensor) -> Tensor:
        return rounding.rounded(states, counts) if state.dtype == ROUNDED else states

    tokens, heads, _ = v.shape
    # One extra row takes the padding, and is dropped.
    output = v.new_empty(tokens + 1, *v.shape[1:])
    if plan.singles is not None:
        rows = plan.singles.rows
        before = state.index_select(0, plan.singles.read_slots).float()
        singles, after = rule.step(
            q.index_select(0, rows),
            k.index_select(0, rows),
            v.index_select(0, rows),
            g.index_select(0, rows),
            beta.index_select(0, rows),
            before,
        )
        output.index_copy_(0, rows, singles)
        chosen = plan.singles.save_rows
        after = stored(after.index_select(0, chosen), plan.singles.counts.index_select(0, chosen))
        state.index_copy_(0, plan.singles.save_slots, after)
    for run in plan.runs:
        head = torch.arange(heads, device=v.device)[:, None]
        index = run.rows[:, None] * heads + head
        valid = run.valid[:, None]
        chunked, kept = rule.chunks(
            _take(q, index),
            _take(k, index),
            _take(v, index),
            _take(g, index).where(valid.view(*valid.shape, *(1,) * (g.dim() - 2)), 0),
            _take(beta, index).where(valid, 0),
            state[run.read_slot].float(),
            run.keep,
            _settling(run, stored),
        )
        target = index.where(valid, tokens * heads)
        output.flatten(0, 1).index_copy_(0, target.flatten(), chunked.flatten(0, 2))
        kept = stored(kept, run.counts[list(run.keep)])
        state.index_copy_(0, run.save_slots, kept.index_select(0, run.save_rows))
    for steps in plan.stepped:
        _step(q, k, v, g, beta, state, steps, output, rule.step, stored)
    return output[:tokens]


Stored = Callable[[Tensor, Tensor], Tensor]
"""A function of states [N, heads, value_dim, key_dim] float32 and their numbers of tokens [N]. It
returns the states as stored."""


def _settling(run: RunPlan, stored: Stored) -> Settle:
    """Return the function for rounding a run's state at every multiple of CHUNK_TOKENS."""
    wholes = [count % CHUNK_TOKENS == 0 for count in run.counts.tolist()]

    def settle(chunk: int, state: Tensor) -> Tensor:
        if not wholes[chunk]:
            return state
        return stored(state[None], run.counts[chunk : chunk + 1])[0].float()

    return settle


def _step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    plan: SteppedPlan,
    output: Tensor,
    step: DeltaStep,
    stored: Stored,
) -> None:
    """Compute one sequence token by token: fill its rows of `output`, and store its planned
    states."""
    slots = dict(plan.saves)
    after = state[plan.read_slot : plan.read_slot + 1].float()
    for offset, row in enumerate(range(plan.start, plan.stop), 1):
        at = slice(row, row + 1)
        output[at], after = step(q[at], k[at], v[at], g[at], beta[at], after)
        # A decode step would store the state rounded, and the next step would read that.
        rounded = stored(after, torch.tensor([plan.before + offset]))
        if offset in slots:
            state[slots[offset]] = rounded[0]
        after = rounded.float()


def _take(x: Tensor, index: Tensor) -> Tensor:
    """Return x [T, heads, ...] arranged by chunk: [chunks, heads, CHUNK_TOKENS, ...]. index: row of
    each token of each chunk."""
    return x.flatten(0, 1).index_select(0, index.flatten()).view(*index.shape, *x.shape[2:])
