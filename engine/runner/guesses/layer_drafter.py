"""Lets the model's draft layer guess on a GPU, behind what a forward draws or before it begins: k
replays of one graph, of which each takes what the one before drew.

Owns the rows' numbers, their pages' table and the graphs; shares model, arena and last tokens with
the runner. A draft is drawn with the temperature, cuts and noise of its position, as the model will
draw there (model/draft_tokens.py is the CPU's). Thread rule: the runner's; one stream.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasuki.engine.forward_plan import ForwardPlan, Guess
from tasuki.engine.runner.block_table import BlockTable
from tasuki.engine.runner.device_batch import SamplingTable
from tasuki.engine.runner.last_tokens import LastTokens
from tasuki.engine.runner.sequence_states import ResolvedRows, SequenceStates
from tasuki.engine.runner.verify.draft_verifier import DraftVerifier
from tasuki.engine.runner.verify.guess_starts import GuessStarts
from tasuki.engine.runner.verify.token_rows import MOST_ROWS
from tasuki.model.backends.triton_backend import TritonBackend
from tasuki.model.ops.sampling.sample import sample
from tasuki.model.ops.sampling.top_k_top_p import cut
from tasuki.model.qwen3_5 import Qwen35Model
from tasuki.pycache.arena import Arena

from .guess_graphs import GuessGraphs
from .guess_rows import GuessRows
from .guessed_rows import GuessedRows


class LayerDrafter:
    def __init__(
        self,
        model: Qwen35Model,
        backend: TritonBackend,
        arena: Arena,
        sequences: SequenceStates,
        sampling: SamplingTable,
        lanes: LastTokens,
        *,
        rows: int,
        pages: int,
        drafts: int,
    ) -> None:
        """rows, pages: most of a step, and of a row. drafts: of a row at most. REQUIRES: nothing in
        the arena is used yet; it has a draft layer."""
        device, weights = arena.bytes.device, model.weights
        self._arena = arena
        self._sequences = sequences
        self._sampling = sampling
        self._lanes = lanes
        self._device = device
        self._dtype = weights.dtype
        self._limit = model.config.max_position
        self._most = min(rows, MOST_ROWS)
        self._rows = GuessRows(
            self._most, model.config.hidden, weights.dtype, lanes.scratch, device
        )
        self._table = BlockTable(self._most, pages, device)
        self._drawn = torch.zeros(drafts, self._most, dtype=torch.int32, device=device)
        self._graphs = GuessGraphs(model, backend, arena, self._rows, self._table.table)

    def first(self, plan: ForwardPlan, rows: ResolvedRows) -> ForwardPlan:
        """The plan with the tokens that its first guesses ask for; waits for them. Nothing of the
        forward is launched yet. rows: the plan's; of those that verify nothing here nothing is
        guessed."""
        asked = [guess for guess in plan.first_guesses if rows.verifies[guess.row]]
        if not asked:
            return plan
        numbers, wanted = self._seat(asked, rows)
        own = rows.take(numbers)
        known = self._to_device(plan.tokens[own.tokens_at].astype(np.int64))
        carried = self._carried(own.read_slots)
        # The token drawn last is in the forward still to come.
        starts = GuessStarts(known.int(), carried, torch.zeros_like(known).int())
        drawn = self._guess(replace(own, lengths=np.ones_like(own.lengths)), wanted, starts)
        torch.cuda.current_stream(self._device).synchronize()
        tokens = plan.tokens.copy()
        for row, found in GuessedRows(numbers.tolist(), wanted, drawn).tokens().items():
            first = int(rows.tokens_at[row]) + 1
            tokens[first : first + len(found)] = found
        return replace(plan, tokens=tokens)

    def behind(
        self, plan: ForwardPlan, rows: ResolvedRows, verifier: DraftVerifier
    ) -> GuessedRows | None:
        """What the plan's guesses ask for, behind what its rows drew, as far as there is room for
        them. REQUIRES: the rows are launched, by `verifier` those that verify."""
        if not plan.guesses:
            return None
        numbers, wanted = self._seat(plan.guesses[: self._most], rows)
        own = rows.take(numbers)
        verifying = own.verifies.nonzero()[0]
        lanes = self._to_device(own.lanes.astype(np.int64))
        starts = GuessStarts(
            self._lanes.tokens(lanes),
            self._carried(own.write_slots),
            torch.zeros_like(lanes).int(),
        )
        if len(verifying):
            found = verifier.starts(own.lanes[verifying].tolist())
            starts.put(self._to_device(verifying), found)
        # Behind the first token at least: that is drawn whatever becomes of the drafts.
        least = np.where(own.verifies, own.starts + 1, own.stops)
        stand = replace(own, starts=least, lengths=np.ones_like(own.lengths))
        return GuessedRows(numbers.tolist(), wanted, self._guess(stand, wanted, starts))

    def _seat(
        self, asked: Sequence[Guess], rows: ResolvedRows
    ) -> tuple[NDArray[np.int64], list[int]]:
        """The numbers of the rows as they sit here, and how many drafts each is to have."""
        lanes = [int(rows.lanes[guess.row]) for guess in asked]
        order = self._table.seat([self._sequences.pages(lane) for lane in lanes])
        seated = [asked[place] for place in order]
        numbers = np.array([guess.row for guess in seated], dtype=np.int64)
        return numbers, [guess.count for guess in seated]

    def _guess(self, rows: ResolvedRows, wanted: Sequence[int], starts: GuessStarts) -> Tensor:
        """[steps, at least n], on its way to the host."""
        count, steps = len(rows), max(wanted)
        self._rows.fill(rows, wanted, self._sampling)
        self._rows.begin(starts, self._limit)
        cuts = bool(self._sampling.cuts[rows.lanes].any())
        draws = self._rows.draws(count)
        for step in range(steps):
            if step:
                self._rows.advance(count)
            logits = self._graphs.replay(count)
            if cuts:
                sample(logits, draws, self._rows.rows, cut(logits, draws))
            self._drawn[step, :count].copy_(draws.token)
        host = torch.empty(steps, count, dtype=torch.int32, pin_memory=True)
        host.copy_(self._drawn[:steps, :count], non_blocking=True)
        return host

    def _carried(self, slots: NDArray[np.int32]) -> Tensor:
        """What these slots carry, [n, width]."""
        carry = self._arena.carry[0]
        return carry.index_select(0, self._to_device(slots.astype(np.int64))).to(self._dtype)

    def _to_device(self, numbers: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(numbers).pin_memory().to(self._device, non_blocking=True)
