"""Drafts on a GPU: verification of rows with drafts, and the draft layer's next guesses."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasuki.engine.forward_plan import Fold, ForwardPlan, Guess, Ints, PlanError
from tasuki.model.attention_split import AttentionSplit
from tasuki.model.forward import FoldRows
from tasuki.model.ops.sampling.reference import Sampled
from tasuki.model.ops.sampling.sample import sample
from tasuki.model.ops.sampling.top_k_top_p import cut
from tasuki.model.protocol import GpuModel
from tasuki.pycache.arena import Arena

from .cuda_graphs import GuessGraphs, VerifyGraphs
from .device_batch import BlockTable, RowDrafts, RowStates, StepShape, to_device
from .draft_rows import DraftedRows, GuessRows, HeldFold, LastSampled, VerifiedRows
from .eager_sampler import EagerSampler
from .row_groups import RowGroups
from .rows import MOST_ROWS, ResolvedRows, token_rows

_MOST_TOKENS_BESIDE = 128
"""Most tokens of a step with one-token rows and rows with drafts together. Up to this number the
matrix products take no longer than reading the weights. Above it a separate step for one-token rows
is cheaper, although weights are read twice."""


@dataclass(frozen=True)
class _Held:
    """A row of the last step. place: index of its kept inputs. start: tokens of its sequence before
    the row. tokens: its number of tokens. read_slot, write_slot: its state slots."""

    place: int
    start: int
    tokens: int
    read_slot: int
    write_slot: int

    def fold(self, count: int) -> HeldFold:
        """Return the fold (storing the state after accepted tokens) for the row's first `count`
        tokens."""
        return HeldFold(self.place, self.start, count, self.read_slot, self.write_slot)


class DraftVerifier:
    """Computes rows with drafts on a GPU, and folds the accepted tokens: it stores the recurrent
    state after them.

    Owns the rows' inputs on the device, their page table, their graphs and the kept inputs of their
    last steps. Shares model, arena and samplers with the runner. A row continuing with drafts folds
    its last step inside the next one (VerifySteps.run). Any other row is folded
    immediately. The engine folds before it drafts again, because drafts follow the accepted tokens.
    Thread rule: the runner's; one stream.
    """

    def __init__(
        self,
        model: GpuModel,
        arena: Arena,
        states: RowStates,
        eager: EagerSampler,
        shape: StepShape,
        *,
        drafts: int,
        stored_drafts: RowDrafts | None,
        split: AttentionSplit,
    ) -> None:
        """shape: shape of the largest step. drafts: most drafts per row. stored_drafts: drafts
        stored by guesses; None without guesses. split: division of the rows' keys. REQUIRES:
        nothing in the arena is used yet."""
        device = arena.bytes.device
        self._model = model
        self._arena = arena
        self._sequences = states.sequences
        self._sampling = states.sampling
        self._eager = eager
        self._device = device
        self._most = min(shape.rows, MOST_ROWS)
        self._rows = DraftedRows(self._most, drafts + 1, states.last_tokens.scratch, device)
        self._table = BlockTable(self._most, shape.pages, device)
        self._steps = model.verify_steps(self._most, drafts + 1, split)
        groups = self._steps.groups
        self._groups = None if groups is None else RowGroups(groups)
        self._stored_drafts = stored_drafts
        self._graphs = VerifyGraphs(
            model,
            arena,
            self._rows,
            self._table.table,
            self._steps,
            None if stored_drafts is None else stored_drafts.tokens,
        )
        self._turn = 0
        """Index, 0 or 1, of the buffer with the last step's kept inputs."""
        self._later: dict[int, HeldFold] = {}
        """Folds of the last step to be done inside the next step, by batch index."""
        self._held: dict[int, _Held] = {}
        self.width = 1
        """Row length of the last step, in tokens."""
        self._alone: set[int] = set()
        """Batch indices with a row computed without its drafts. It wrote its slot itself."""
        self._beside: frozenset[int] = frozenset()
        """Batch indices of one-token rows computed together with this step's rows with drafts."""
        self._store([_Held(0, 0, 1, 0, 0)])

    def seated(self, rows: ResolvedRows) -> ResolvedRows:
        """Limit the rows with drafts to the available space; further ones become one-token rows
        without drafts. If all one-token rows fit too, they join the step of the rows with drafts,
        so weights are read once. Return the changed rows."""
        self._beside = frozenset()
        others = rows.verifies.nonzero()[0][self._most :]
        if not len(others):
            return self._joined(rows)
        waiting = [
            self._later.pop(batch_index, None)
            for batch_index in rows.batch_indices[others].tolist()
        ]
        self._fold_now([fold for fold in waiting if fold is not None])
        verifies, decodes, lengths = rows.verifies.copy(), rows.decodes.copy(), rows.lengths.copy()
        verifies[others], decodes[others], lengths[others] = False, True, 1
        self._alone |= set(rows.batch_indices[others].tolist())
        return replace(rows, verifies=verifies, decodes=decodes, lengths=lengths)

    def _joined(self, rows: ResolvedRows) -> ResolvedRows:
        decodes = rows.decodes
        count = int(rows.verifies.sum() + decodes.sum())
        if not rows.verifies.any() or not decodes.any() or count > self._most:
            return rows
        width = self._graphs.width(int(rows.lengths[rows.verifies].max()))
        # An adjusted sample waits for earlier ones. A token kept by batch index is read only by a
        # plain step.
        apart = rows.at_index | self._sampling.adjusted(rows)
        if count * width > _MOST_TOKENS_BESIDE or (decodes & apart).any():
            return rows
        self._beside = frozenset(rows.batch_indices[decodes].tolist())
        return replace(rows, verifies=rows.verifies | decodes, decodes=np.zeros_like(decodes))

    def verify(
        self, plan: ForwardPlan, rows: ResolvedRows, numbers: NDArray[np.int64]
    ) -> VerifiedRows:
        """Compute the rows with these indices in the plan, sample after each token, and return the
        results. There is at least one row, and no more than seated() left."""
        batch_indices = rows.batch_indices[numbers].tolist()
        pages = [self._sequences.pages(batch_index) for batch_index in batch_indices]
        order = self._table.seat(pages)
        numbers = numbers[order]
        rows = rows.take(numbers)
        if self._groups is not None:
            self._groups.seat([pages[place] for place in order], rows)
        width = self._graphs.width(int(rows.lengths.max()))
        each = token_rows(rows, width)
        ids: Ints = np.zeros((len(rows), width), dtype=np.int32)
        for row, (at, length) in enumerate(zip(rows.tokens_at, rows.lengths, strict=True)):
            ids[row, :length] = plan.tokens[at : at + length]
        self._check_drafts(rows)
        for batch_index, slot in zip(
            rows.batch_indices.tolist(), rows.read_slots.tolist(), strict=True
        ):
            if batch_index in self._later and self._later[batch_index].write_slot != slot:
                raise PlanError(
                    f"batch index {batch_index} reads slot {slot}, which its fold does not store"
                )
        self._turn = 1 - self._turn
        self._rows.fill(rows, each, ids, self._sampling, self._turn, self._later)
        self._later = {}
        logits = self._graphs.replay(len(rows), width)
        self._hold(rows, width)
        if self._sampling.sees_all(rows):
            logits = self._model.whole(logits)
        if self._sampling.cuts[rows.batch_indices].any():
            own = logits[: len(each)]
            draws = self._rows.draws(len(rows), width)
            sample(own, draws, self._rows.tokens, cut(own, draws))
        tops = self._eager.top(np.arange(len(each)), each, logits)
        sampled, sent = self._rows.read(), self._rows.read_ids()
        adjusted = self._draw_adjusted(rows, each, sent, width, logits)
        self._take_over(adjusted, width)
        indices = rows.batch_indices.tolist()
        self._store([self._held[index] for index in indices if index in self._beside])
        verified = VerifiedRows(numbers, rows.lengths, sent, width, sampled, tops, adjusted)
        self._eager.follow(rows, verified)
        return verified

    def _check_drafts(self, rows: ResolvedRows) -> None:
        taken = rows.drafts_at_index
        for batch_index, length in zip(
            rows.batch_indices[taken].tolist(), rows.lengths[taken], strict=True
        ):
            if self._stored_drafts is None:
                raise PlanError(
                    f"batch index {batch_index} is to verify drafts of its own; no draft layer is "
                    "loaded here"
                )
            self._stored_drafts.check(batch_index, int(length) - 1)

    @property
    def last_sampled(self) -> LastSampled:
        """The last step's results, for the draft layer. REQUIRES: there is a draft layer."""
        assert self._steps.hidden is not None, "the config has no draft layer"
        return self._rows.last_sampled(self._steps.hidden)

    def place(self, batch_index: int) -> int:
        """Return the index of the batch index's row in the last step. REQUIRES: no part of the row
        is folded yet."""
        return self._held[batch_index].place

    def _take_over(self, adjusted: Mapping[int, Sequence[Sampled]], width: int) -> None:
        """Replace the graph's sampled tokens on the device by tokens sampled outside of the graph.
        adjusted: new tokens by row. width: row length."""
        found = [
            (place * width + at, token.token)
            for place, tokens in adjusted.items()
            for at, token in enumerate(tokens)
        ]
        if found:
            places, tokens = to_device(np.array(found).T.copy(), self._device)
            self._rows.put(places, tokens.int())

    def _hold(self, rows: ResolvedRows, width: int) -> None:
        self.width = width
        columns = (
            *(rows.batch_indices, rows.starts, rows.lengths),
            *(rows.read_slots, rows.write_slots),
        )
        self._held = {
            batch_index: _Held(place, start, tokens, read, write)
            for place, (batch_index, start, tokens, read, write) in enumerate(
                zip(*(column.tolist() for column in columns), strict=True)
            )
        }

    def _draw_adjusted(
        self, of: ResolvedRows, each: ResolvedRows, ids: Tensor, width: int, logits: Tensor
    ) -> dict[int, list[Sampled]]:
        """Sample rows with adjusted logits, token after token as long as drafts are accepted. The
        host waits for each token, because the next adjustment depends on it. Return the tokens by
        row index. `of`: the rows. each: the rows' tokens as one-token rows. ids: the tokens being
        copied to the host."""
        going = self._sampling.adjusted(of).nonzero()[0].tolist()
        found: dict[int, list[Sampled]] = {row: [] for row in going}
        for place in range(width):
            if not going:
                break
            at = np.array(going) * width + place
            own = logits[to_device(at, self._device)]
            rows = each.take(at)
            likeliest = self._eager.top(at, rows, own)
            sampled = self._eager.draw_all(rows, own)
            torch.cuda.current_stream(self._device).synchronize()
            tops = dict(of_row for some in likeliest for of_row in some.of_rows())
            tokens, floats = sampled[0].tolist(), sampled.view(torch.float32)
            still = []
            for number, row in enumerate(going):
                logprob, margin = float(floats[1, number]), float(floats[2, number])
                top = tops.get(int(at[number]), ())
                found[row].append(Sampled(tokens[number], logprob, margin, top))
                draft = place + 1
                if draft < of.lengths[row] and tokens[number] == ids[row * width + draft]:
                    still.append(row)
            going = still
        return found

    def fold(self, folds: Iterable[Fold], later: Collection[int]) -> None:
        """Store the requested states after accepted tokens. later: batch indices with rows in the
        next step; if there is space, the next step stores their states itself. Raises PlanError."""
        found: dict[int, HeldFold] = {}
        for fold in folds:
            if fold.batch_index in self._alone and fold.count == 1:
                self._alone.discard(fold.batch_index)
                continue
            row = self._held.pop(fold.batch_index, None)
            if row is None or not 0 < fold.count <= row.tokens:
                raise PlanError(
                    f"{fold.count} tokens of batch index {fold.batch_index} are to be folded, "
                    f"which holds {0 if row is None else row.tokens}"
                )
            found[fold.batch_index] = row.fold(fold.count)
        self._later = {
            batch_index: fold for batch_index, fold in found.items() if batch_index in later
        }
        self._fold_now([fold for batch_index, fold in found.items() if batch_index not in later])

    def drop(self, batch_indices: Iterable[int]) -> None:
        for batch_index in batch_indices:
            self._held.pop(batch_index, None)
            self._alone.discard(batch_index)

    def _store(self, rows: Sequence[_Held]) -> None:
        """Store the states after one-token rows; their single token is always accepted."""
        self._fold_now([row.fold(1) for row in rows])

    @torch.inference_mode()
    def _fold_now(self, folds: Sequence[HeldFold]) -> None:
        if not folds:
            return
        host = torch.empty(5, len(folds), dtype=torch.int32, pin_memory=True)
        columns = [
            (fold.start, fold.place, fold.count, fold.read_slot, fold.write_slot) for fold in folds
        ]
        host.numpy()[:] = np.array(columns).T
        starts, *tables = host.to(self._device, non_blocking=True)
        self._steps.fold(self._turn, FoldRows(*tables), starts, self._arena)


class LayerDrafter:
    """Makes the draft layer's guesses on a GPU, after a forward's sampled token or before a
    forward. One graph makes all guesses, each from the previous one. The drafts stay at the rows'
    batch indices.

    Owns the rows' inputs, their page table and the graphs. Shares model, arena, last tokens and the
    stored drafts with the runner. A draft is sampled with the temperature, cuts and noise of its
    position, like the model's later sample there (the CPU's guesses: model/drafts.py). Thread
    rule: the runner's; one stream.
    """

    def __init__(
        self,
        model: GpuModel,
        arena: Arena,
        states: RowStates,
        verifier: DraftVerifier,
        drafts: RowDrafts,
        shape: StepShape,
    ) -> None:
        """verifier: computes the rows before the guesses. drafts: destination of the guesses.
        shape: size of the largest step. REQUIRES: nothing in the arena is used yet; it has a draft
        layer."""
        self._sequences = states.sequences
        self._sampling = states.sampling
        self._last_tokens = last_tokens = states.last_tokens
        self._verifier = verifier
        self._drafts = drafts
        self._most = min(shape.rows, MOST_ROWS)
        self._rows = GuessRows(self._most, last_tokens, model.carried(arena), verifier.last_sampled)
        self._table = BlockTable(self._most, shape.pages, arena.bytes.device)
        self._graphs = GuessGraphs(model, arena, self._rows, self._table.table, drafts.tokens)

    def first(self, plan: ForwardPlan, rows: ResolvedRows) -> ResolvedRows:
        """Make the plan's guesses for drafts of the coming forward, from the hidden state stored in
        each row's slot. Return the rows, marked to take these drafts from their batch indices.
        Called before the forward is launched. rows: the plan's rows; a row without drafts to verify
        gets no guesses."""
        asked = [guess for guess in plan.first_guesses if rows.verifies[guess.row]]
        if not asked:
            return rows
        numbers, wanted = self._seat(asked, rows)
        own = rows.take(numbers)
        self._last_tokens.put_known(own.batch_indices, plan.tokens[own.tokens_at])
        # The last sampled token is in the coming forward.
        stand = replace(own, lengths=np.ones_like(own.lengths))
        self._guess(stand, wanted, [-1] * len(own), own.read_slots)
        at_index = rows.drafts_at_index.copy()
        at_index[numbers] = True
        return replace(rows, drafts_at_index=at_index)

    def behind(self, plan: ForwardPlan, rows: ResolvedRows) -> dict[int, int]:
        """Make the plan's guesses after the tokens sampled by its rows. The number of rows is
        limited by the drafts' page table. Return the number of drafts kept for each row, by the
        row's number in the plan. REQUIRES: the rows are launched."""
        if not plan.guesses:
            return {}
        numbers, wanted = self._seat(plan.guesses[: self._most], rows)
        own = rows.take(numbers)
        places = [
            self._verifier.place(batch_index) if verifies else -1
            for batch_index, verifies in zip(
                own.batch_indices.tolist(), own.verifies.tolist(), strict=True
            )
        ]
        # Start behind the first token at least: it is sampled even if every draft is rejected.
        least = np.where(own.verifies, own.starts + 1, own.stops)
        stand = replace(own, starts=least, lengths=np.ones_like(own.lengths))
        self._guess(stand, wanted, places, own.write_slots)
        return dict(zip(numbers.tolist(), wanted, strict=True))

    def _seat(
        self, asked: Sequence[Guess], rows: ResolvedRows
    ) -> tuple[NDArray[np.int64], list[int]]:
        """Assign rows of the page table to the guesses. Return, in the order of these rows, the
        rows' indices in the plan and their numbers of guesses."""
        batch_indices = [int(rows.batch_indices[guess.row]) for guess in asked]
        order = self._table.seat(
            [self._sequences.pages(batch_index) for batch_index in batch_indices]
        )
        seated = [asked[place] for place in order]
        numbers = np.array([guess.row for guess in seated], dtype=np.int64)
        return numbers, [guess.count for guess in seated]

    def _guess(
        self, rows: ResolvedRows, wanted: Sequence[int], places: Sequence[int], slots: Ints
    ) -> None:
        self._rows.fill(rows, wanted, places, slots, self._verifier.width, self._sampling)
        cuts = bool(self._sampling.cuts[rows.batch_indices].any())
        self._graphs.replay(len(rows), max(wanted), cuts=cuts)
        self._drafts.guessed(rows.batch_indices.tolist(), wanted)
