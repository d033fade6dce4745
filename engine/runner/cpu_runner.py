"""The runner of CPUs."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasuki.engine.forward_plan import Fold, ForwardPlan, Guess, PlanError
from tasuki.engine.pictures.row_store import FindRows
from tasuki.model.drafts import DraftStart, draft_tokens
from tasuki.model.forward import Batch, LayerHooks, SequenceSlice
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.model.ops.sampling.prompt_scores import HeadOf, ScoredRows
from tasuki.model.ops.sampling.reference import Sampled, sample
from tasuki.model.protocol import Model
from tasuki.pycache.arena import Arena, run_copies
from tasuki.transfer.chunks.chunk import StepCounter

from .base import Event, SampledTokens
from .logits import SampledTogether, kept_adjustments, score_prompts
from .recent_ids import RecentIds
from .rows import ResolvedRows, SequenceStates


@dataclass(frozen=True)
class HeldRow:
    """A verified row with drafts, kept until its fold (storing the state after accepted tokens).
    slice: the row as computed. write_slot: destination slot of its state. inputs: the recurrence's
    inputs [its tokens, widths], by layer with a state."""

    slice: SequenceSlice
    write_slot: int
    inputs: Mapping[int, Tensor]


@dataclass
class InputsOfRows(LayerHooks):
    """Hooks to copy mixer inputs during a forward, in addition to other hooks. rows: indices of the
    tokens to copy. layers: layers to copy them in. whole: index of a layer; its input is kept for
    all tokens."""

    hooks: LayerHooks
    layers: frozenset[int]
    rows: Tensor
    whole: int
    inputs: dict[int, Tensor] = field(default_factory=dict)
    hidden: Tensor | None = None

    def before_layer(self, layer: int) -> None:
        self.hooks.before_layer(layer)

    def mixer_inputs(self, layer: int, projected: Tensor) -> None:
        self.hooks.mixer_inputs(layer, projected)
        if layer == self.whole:
            self.hidden = projected
        if layer in self.layers and len(self.rows):
            self.inputs[layer] = projected[self.rows]

    def cache_written(self, layer: int) -> None:
        self.hooks.cache_written(layer)

    def after_layer(self, layer: int, stream: Callable[[], Tensor]) -> None:
        self.hooks.after_layer(layer, stream)


class HeldInputs:
    """Inputs of the recurrence, and of a draft layer's carried hidden state, for rows verifying
    drafts. They are kept until the number of accepted tokens is known.

    Such a row leaves its slots unchanged (forward_plan.py, invariant 5). Storing the state after
    some of its tokens repeats the recurrence over the same inputs, with the same arithmetic, token
    by token. So the state equals that of as many decode steps bit for bit. The inputs of a token
    take a hundredth of a state's bytes. Owns the inputs of at most one row per batch index, from
    its forward to its fold, or until its sequence leaves. Thread rule: the runner's.
    """

    def __init__(self) -> None:
        self._rows: dict[int, HeldRow] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def hold(self, batch_index: int, row: HeldRow) -> None:
        """Keep a row with drafts for its fold; it replaces the batch index's previous one."""
        self._rows[batch_index] = row

    def drop(self, batch_indices: Iterable[int]) -> None:
        for batch_index in batch_indices:
            self._rows.pop(batch_index, None)

    def fold(self, folds: Iterable[Fold], model: Model, arena: Arena) -> None:
        """Store the states requested by the folds, and forget the held inputs of their sequences.
        Raises PlanError if fewer tokens are held."""
        slices: list[SequenceSlice] = []
        inputs: list[Mapping[int, Tensor]] = []
        for fold in folds:
            held = self._rows.pop(fold.batch_index, None)
            if held is None or not 0 < fold.count <= len(held.slice.token_ids):
                raise PlanError(
                    f"{fold.count} tokens of batch index {fold.batch_index} are to be folded, "
                    f"which holds {0 if held is None else len(held.slice.token_ids)}"
                )
            tokens = held.slice.token_ids[: fold.count]
            item = replace(held.slice, token_ids=tokens, write_slot=held.write_slot)
            # A state depends on no rotary position.
            slices.append(replace(item, rope_positions=None))
            inputs.append({layer: x[: fold.count] for layer, x in held.inputs.items()})
        if slices:
            together = {layer: torch.cat([some[layer] for some in inputs]) for layer in inputs[0]}
            model.fold(Batch.pack(slices), together, arena)


class LayerTicks(LayerHooks):
    """Increments the step counter once per layer of any kind, so layer chunks leave while later
    layers still run."""

    def __init__(self, steps: StepCounter, layers: int) -> None:
        """layers: number of layers of a forward."""
        self._steps = steps
        self._layers = layers

    def cache_written(self, layer: int) -> None:
        self._steps.tick()

    def after_layer(self, layer: int, stream: Callable[[], Tensor]) -> None:
        if layer == self._layers - 1:
            self._steps.end_forward()


@dataclass(frozen=True)
class CpuForward:
    """An ended `InFlightForward`."""

    sampled: SampledTokens
    idle_seconds: float
    busy_seconds: float
    has_ended: bool = True

    def result(self) -> SampledTokens:
        return self.sampled


class CpuRunner:
    """Runs plans on the CPU. A launch computes immediately. All else is as on a GPU: a sampled
    token stays at its batch index, and the next forward takes it from there. A row of several
    tokens samples one after each, in order, until a draft differs.

    Owns the last tokens by batch index and data of sequences; shares model and arena. One thread.
    """

    def __init__(
        self,
        model: Model,
        arena: Arena,
        steps: StepCounter,
        grammars: GrammarCompiler,
        together: SampledTogether | None = None,
        pictures: FindRows | None = None,
    ) -> None:
        """together: the other ranks of the model; None: there are none. pictures: the rows of
        pictures; None: plans have none."""
        self._model = model
        self._arena = arena
        self._steps = steps
        self._hooks = LayerTicks(steps, len(arena.layout.layers))
        self._sequences = SequenceStates(arena.slabs)
        self._adjustments = kept_adjustments(together)(model.config, grammars)
        self._together = together
        self._find_rows = None if pictures is None else pictures.rows
        self._sampled: dict[int, list[int]] = {}
        self._recent = RecentIds(model.config.ids_before)
        self._held = HeldInputs()
        caches = enumerate(arena.layout.layers)
        self._with_state = frozenset(layer for layer, cache in caches if cache.slot)
        self._ended_at = time.perf_counter()

    @property
    def ticks(self) -> int:
        return self._steps.value

    def prepare(self) -> None:
        """Do nothing: a CPU needs no preparation before the first request."""

    def check_device(self) -> None:
        """Do nothing: a CPU cannot be lost while it runs this code."""

    def record_event(self) -> Event:
        return lambda: True

    def launch(self, plan: ForwardPlan) -> CpuForward:
        rows = self._sequences.apply(plan)
        self._adjustments.apply(plan)
        self._held.fold(plan.folds, self._model, self._arena)
        self._held.drop(plan.left)
        self._recent.drop(plan.left)
        if plan.copies:
            run_copies(self._arena, plan.copies)
        before, started = self._ended_at, time.perf_counter()
        results = self._compute(plan, rows) if len(rows) else SampledTokens.nothing(0)
        ended = time.perf_counter()
        if len(rows):
            # The time of a plan without rows counts to the next forward's wait.
            self._ended_at = ended
        return CpuForward(results, started - before, ended - started)

    def _compute(self, plan: ForwardPlan, rows: ResolvedRows) -> SampledTokens:
        slices = self._sequences.slices(plan, rows, self._sampled, self._find_rows)
        slices = self._recent.with_ids(plan, rows, slices)
        self._make_drafts(plan, rows, slices)
        self._recent.record(rows, slices)
        batch = Batch.pack(slices)
        verifying = rows.verifies.nonzero()[0].tolist()
        starts = batch.cu_seqlens.tolist()
        drafted = [range(starts[row], starts[row + 1]) for row in verifying]
        scored: dict[int, ScoredRows] = {}
        verified: list[torch.Tensor] = []

        def score(head: HeadOf) -> None:
            device = self._arena.bytes.device
            scored.update(score_prompts(plan, rows, dict(enumerate(starts)), head, device))
            verified.extend(head(torch.tensor(places)).float() for places in drafted)

        hooks: LayerHooks = self._hooks
        places = torch.tensor([place for row in drafted for place in row], dtype=torch.int64)
        inputs = InputsOfRows(self._hooks, self._with_state, places, self._model.config.layers)
        if drafted or plan.guesses:
            hooks = inputs
        with torch.inference_mode():
            logits = self._model.forward(
                batch, self._arena, hooks, *((score,) if plan.scored or drafted else ())
            )
        results: list[Sampled | None] = [None] * len(rows)
        drawing = (rows.num_sampled.astype(bool) & ~rows.verifies).nonzero()[0]
        for row, token in zip(drawing.tolist(), self._draw(rows, drawing, logits), strict=True):
            results[row] = token
        behind: dict[int, tuple[Sampled, ...]] = {}
        first = 0
        for row, of_row, found in zip(verifying, drafted, verified, strict=True):
            last = first + len(of_row)
            kept = {layer: x[first:last] for layer, x in inputs.inputs.items()}
            held = HeldRow(slices[row], int(rows.write_slots[row]), kept)
            self._held.hold(int(rows.batch_indices[row]), held)
            results[row], *more = self._verify(rows, row, found, slices[row].token_ids[1:])
            behind[row] = tuple(more)
            first = last
        sampled = replace(
            SampledTokens.of(results),
            scores={row: found.values() for row, found in scored.items()},
            behind=behind,
        )
        if not plan.guesses:
            return sampled
        assert inputs.hidden is not None, "the arena has no draft layer"
        return replace(
            sampled, guessed=self._guess(plan, rows, slices, starts, sampled, inputs.hidden)
        )

    def _make_drafts(
        self, plan: ForwardPlan, rows: ResolvedRows, slices: list[SequenceSlice]
    ) -> None:
        """Make the plan's guesses before the forward, as drafts in the slices. Raises PlanError."""
        if rows.drafts_at_index.any():
            raise PlanError(
                f"plan {plan.number} has drafts at batch indices; a CPU leaves none there"
            )
        if not plan.first_guesses:
            return
        carry = self._model.carried(self._arena)
        wanted = []
        for guess in plan.first_guesses:
            item = slices[guess.row]
            carried = carry[item.read_slot].to(self._model.weights.dtype)
            wanted.append(self._start(guess, rows, item, item.token_ids[0], item.start, carried))
        found = draft_tokens(self._model, self._arena, wanted)
        for guess, drafts in zip(plan.first_guesses, found, strict=True):
            item = slices[guess.row]
            slices[guess.row] = replace(item, token_ids=[item.token_ids[0], *drafts])

    def _start(
        self,
        guess: Guess,
        rows: ResolvedRows,
        item: SequenceSlice,
        token: int,
        position: int,
        hidden: Tensor,
    ) -> DraftStart:
        """Return the start of a row's guesses: a token, its position, and the hidden state [width]
        before it. item: the row's slice."""
        sampling = self._sequences.sampling(int(rows.batch_indices[guess.row]))
        place = token, position, hidden, item.pages, item.read_slot
        return DraftStart(*place, sampling, guess.count, item.rope_delta)

    def _guess(
        self,
        plan: ForwardPlan,
        rows: ResolvedRows,
        slices: Sequence[SequenceSlice],
        starts: Sequence[int],
        sampled: SampledTokens,
        hidden: torch.Tensor,
    ) -> dict[int, tuple[int, ...]]:
        """Return the draft layer's guesses after the forward, by row of the plan. hidden: [T,
        width], the forward's hidden states. starts: index of each row's first token in it."""
        wanted = []
        for guess in plan.guesses:
            row, tokens = guess.row, sampled.all_at(guess.row)
            held = len(tokens) if rows.verifies[row] else int(rows.lengths[row])
            last, own = int(rows.starts[row]) + held, hidden[starts[row] + held - 1]
            wanted.append(self._start(guess, rows, slices[row], tokens[-1].token, last, own))
        found = draft_tokens(self._model, self._arena, wanted)
        return {guess.row: drafts for guess, drafts in zip(plan.guesses, found, strict=True)}

    def _draw(
        self, rows: ResolvedRows, drawing: NDArray[np.int64], logits: torch.Tensor
    ) -> list[Sampled]:
        """Return a sampled token of each of these rows. logits: all rows' logits."""
        batch_indices = rows.batch_indices[drawing].tolist()
        if not batch_indices:
            return []
        sampled = self._sample(logits[drawing], batch_indices, rows.stops[drawing].tolist())
        for batch_index, token in zip(batch_indices, sampled, strict=True):
            self._sampled[batch_index] = [token.token]
            self._adjustments.sampled(batch_index, token.token)
        return sampled

    def _sample(
        self, logits: torch.Tensor, batch_indices: Sequence[int], positions: Sequence[int]
    ) -> list[Sampled]:
        """Return a sampled token of each row. positions: positions of the sampled tokens."""
        wanted = [self._sequences.sampling(batch_index) for batch_index in batch_indices]
        sampled = sample(logits, wanted, positions, self._adjustments.scores(logits, batch_indices))
        if self._together is not None and any(sampling.adjusts for sampling in wanted):
            return self._together.agreed(sampled)
        return sampled

    def _verify(
        self, rows: ResolvedRows, row: int, logits: torch.Tensor, drafts: Sequence[int]
    ) -> list[Sampled]:
        """Return the tokens sampled after the row's first token and after each accepted draft. So a
        sample depends only on sampled tokens. logits [1 + drafts, vocab]."""
        batch_index, start = int(rows.batch_indices[row]), int(rows.starts[row])
        found: list[Sampled] = []
        for place in range(len(drafts) + 1):
            some = logits[place : place + 1]
            [token] = self._sample(some, [batch_index], [start + place + 1])
            self._adjustments.sampled(batch_index, token.token)
            found.append(token)
            if place == len(drafts) or token.token != drafts[place]:
                break
        return found
