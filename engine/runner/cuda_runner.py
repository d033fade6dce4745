"""The runner for GPUs, its forwards in flight with their results, and the step counter ticked by
their layers."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasuki.engine.forward_plan import ForwardPlan, PlanError
from tasuki.engine.pictures.row_store import FindRows, RowsGone
from tasuki.model.forward import (
    Batch,
    LayerHooks,
    NullHooks,
    PicturesUnsupported,
    RowSpan,
    SequenceSlice,
)
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.model.ops.sampling.prompt_scores import ScoredRows
from tasuki.model.ops.sampling.reference import Sampled
from tasuki.model.ops.sampling.sample import sample
from tasuki.model.ops.sampling.top_k_top_p import cut
from tasuki.model.protocol import ForwardResult, GpuModel
from tasuki.pycache._cpp_cache import CudaContext, StreamTicks
from tasuki.pycache.arena import Arena, run_copies
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.transfer.chunks.chunk import StepCounter
from tasuki.utils.logs import Progress, no_progress

from .base import DeviceLost, Event, RunnerSizes, SampledTokens
from .cuda_graphs import DecodeGraphs
from .device_batch import (
    BlockTable,
    DeviceBatch,
    LastTokens,
    RowDrafts,
    RowStates,
    SamplingTable,
    StepShape,
    take_over,
)
from .device_drafts import DraftVerifier, LayerDrafter
from .draft_rows import VerifiedRows
from .eager_sampler import EagerSampler, SampledOnce, TopTokens, recorded
from .logits import SampledTogether, kept_adjustments, score_prompts
from .row_groups import RowGroups
from .rows import ResolvedRows, SequenceStates, own_turns


class LayerEvents(LayerHooks):
    """Increments the step counter (ticks it) when a GPU has written a layer's KV and state.

    Owns a thread: it waits for the event after each layer's writes, then ticks. It never holds the
    interpreter's lock (cpp_cache/dataplane/stream_ticks.h). The thread of the forward only records.
    Thread rule: hooks on the engine loop's thread; only the owned thread ticks the counter.
    launched: the counter's value once all recorded events have passed.
    """

    def __init__(self, steps: StepCounter, layers: int) -> None:
        """steps: the step counter. layers: number of layers of a forward."""
        self._steps = steps
        self._layers = layers
        self.launched = steps.value

    @cached_property
    def _ticks(self) -> StreamTicks:
        # Use the current device of the forward's thread, perhaps not the thread that built this.
        return StreamTicks(CudaContext(torch.cuda.current_device()), self._steps)

    def cache_written(self, layer: int) -> None:
        self.launched += 1
        self._ticks.tick_behind(torch.cuda.current_stream().cuda_stream)

    def after_layer(self, layer: int, stream: Callable[[], Tensor]) -> None:
        if layer == self._layers - 1:
            self._ticks.end_behind(torch.cuda.current_stream().cuda_stream)


@dataclass(frozen=True)
class SampledPart:
    """Sampled tokens of some rows, being copied to the host. rows: indices of the rows in the plan.
    tops: the likeliest tokens of some of these rows."""

    rows: NDArray[np.int64]
    sampled: torch.Tensor
    tops: Sequence[TopTokens] = ()


@dataclass(frozen=True)
class ForwardEnds:
    """CUDA events of a forward. sampled: recorded after all sampling. guessed: recorded after the
    draft layer's guesses for the next forward."""

    sampled: torch.cuda.Event
    guessed: torch.cuda.Event


@dataclass(frozen=True)
class CudaForward:
    """An `InFlightForward` of a plan with `rows` rows.

    parts: sampled tokens; if two parts have the same row, the later one counts. verified: results
    of rows with drafts. guessed: number of drafts stored at the batch index for the next forward,
    by row. The forward ends before these guesses; its busy time includes the previous forward's
    guesses. scores: scores of prompt tokens being copied to the host, by row. before: events of the
    previous forward.
    """

    rows: int
    parts: Sequence[SampledPart]
    verified: Sequence[VerifiedRows]
    guessed: Mapping[int, int]
    scores: Mapping[int, ScoredRows]
    before: ForwardEnds
    started: torch.cuda.Event
    ended: torch.cuda.Event

    @property
    def has_ended(self) -> bool:
        return bool(self.ended.query())  # type: ignore[no-untyped-call]

    @property
    def idle_seconds(self) -> float:
        return float(self.before.guessed.elapsed_time(self.started)) / 1000

    @property
    def busy_seconds(self) -> float:
        guessing = self.before.sampled.elapsed_time(self.before.guessed)
        return float(guessing + self.started.elapsed_time(self.ended)) / 1000

    def result(self) -> SampledTokens:
        self.ended.synchronize()
        sampled = SampledTokens.nothing(self.rows)
        for part in self.parts:
            take_over(part.sampled, sampled, part.rows)
        tops = {
            row: top for part in self.parts for tokens in part.tops for row, top in tokens.of_rows()
        }
        behind: dict[int, tuple[Sampled, ...]] = {}
        for verified in self.verified:
            first, more = verified.put(sampled)
            tops.update(first)
            behind.update(more)
        scores = {row: scored.values() for row, scored in self.scores.items()}
        return replace(sampled, tops=tops, scores=scores, behind=behind, at_index=self.guessed)


@dataclass(frozen=True)
class PromptRows:
    """Rows of a plan outside of graphs. numbers: their indices in the plan."""

    numbers: NDArray[np.int64]
    rows: ResolvedRows
    batch: Batch


_FAR_TOKENS = 32 * 1024


class CudaRunner:
    """Runs plans on a GPU: decoding rows by a captured graph, rows with drafts by another one,
    prompts eagerly after them. Then the draft layer guesses the next tokens.

    Owns the last tokens, the rows and the block table; shares model and arena. All work joins one
    stream, the current one, and only InFlightForward.result() waits for the GPU. Thread rule: the
    engine loop's.
    """

    def __init__(
        self,
        model: GpuModel,
        arena: Arena,
        ticks: LayerEvents | None,
        grammars: GrammarCompiler,
        sizes: RunnerSizes,
        *,
        max_position: int,
        progress: Progress = no_progress,
        together: SampledTogether | None = None,
        pictures: FindRows | None = None,
    ) -> None:
        """Capture the graphs; `progress` counts them. ticks: ticks the step counter for layers of
        prompts, if they are sent to another node. together: the other ranks of the model, making
        the same calls at the same time; None for one rank. pictures: the rows of pictures, on this
        device; None: plans have none. REQUIRES: the model sees pictures if plans have some. With
        guesses, drafts are enabled too, and the arena has a draft layer."""
        layout, device = arena.layout, arena.bytes.device
        max_batch, drafts, guesses = sizes.batch, sizes.drafts, sizes.guesses
        pages = min(-(-max_position // PAGE_TOKENS), arena.slabs * layout.pages_per_slab)
        self._model = model
        self._arena = arena
        self._ticks = ticks
        self._sequences = SequenceStates(arena.slabs)
        self._find_rows = None if pictures is None else pictures.rows
        self._adjustments = kept_adjustments(together)(model.config, grammars)
        self._sampling = SamplingTable(arena.slabs)
        self._last_tokens = LastTokens(arena.slabs, device)
        self._answers = DeviceBatch(max_batch, self._last_tokens.scratch, device)
        self._prompts = DeviceBatch(max_batch, self._last_tokens.scratch, device)
        self._table = BlockTable(max_batch, pages, device)
        self._graphs = DecodeGraphs(
            *(model, arena, self._answers, self._table.table, self._last_tokens, progress),
            split=sizes.split,
        )
        groups = self._graphs.groups
        self._groups = None if groups is None else RowGroups(groups)
        self._eager = EagerSampler(
            max_batch,
            model.config.vocab,
            model.weights.dtype,
            self._sampling,
            self._adjustments,
            self._last_tokens,
            device,
            together,
        )
        states = RowStates(self._sequences, self._sampling, self._last_tokens)
        shape = StepShape(max_batch, pages)
        stored_drafts = RowDrafts(arena.slabs + 1, guesses, device) if guesses else None
        self._stored_drafts = stored_drafts
        self._verifier = None
        if drafts:
            self._verifier = DraftVerifier(
                *(model, arena, states, self._eager, shape),
                drafts=drafts,
                stored_drafts=stored_drafts,
                split=sizes.split,
            )
        self._drafter = None
        if stored_drafts is not None and self._verifier is not None:
            self._drafter = LayerDrafter(model, arena, states, self._verifier, stored_drafts, shape)
        self._warm_up()
        begun = recorded(timed=True)
        self._ends = ForwardEnds(begun, begun)

    def _warm_up(self) -> None:
        """Compile the prompt kernels for every kind of prompt length before a client waits.

        REQUIRES: nothing in the arena is used yet.
        """
        longest = self._model.config.max_position
        far = min(_FAR_TOKENS, longest - PAGE_TOKENS)
        block = min(self._model.block_rows, longest)
        # Triton compiles separately for sizes of one and for multiples of 16. A short run on a long
        # context takes other kernels than a prompt from its start. A block of a long run takes
        # others again (GpuModel.block_rows).
        for runs in (
            ((1, 0),),
            ((3, 0),),
            *(((length, 0),) for length in self._model.tile_lengths),
            ((PAGE_TOKENS, far),),
            ((1, 0), (PAGE_TOKENS + 1, 0)),
            ((block, min(far, longest - block)),),
        ):
            slices = []
            for length, start in runs:
                pages = [self._arena.layout.blocks_per_slab] * (-(-(start + length) // PAGE_TOKENS))
                slices.append(SequenceSlice([0] * length, start, pages, 0, 0))
            self._model.forward(Batch.pack(slices), self._arena, NullHooks())
            if self._model.sees_pictures:
                seen = [self._as_picture(item) for item in slices]
                self._model.forward(Batch.pack(seen), self._arena, NullHooks())
        torch.cuda.synchronize()

    def _as_picture(self, item: SequenceSlice) -> SequenceSlice:
        """Return the slice with rotary positions of its own, and one picture's row."""
        row = self._model.picture_row
        return replace(item, rope_positions=item.rope(), pictures=(RowSpan(0, row),))

    def prepare(self) -> None:
        self._model.prepare()

    @property
    def ticks(self) -> int:
        return 0 if self._ticks is None else self._ticks.launched

    def check_device(self) -> None:
        """Raise DeviceLost if the CUDA context is lost. Every later CUDA call raises the context's
        error again, this check's call too."""
        try:
            torch.cuda.synchronize(self._arena.bytes.device)
        except Exception as error:
            raise DeviceLost(f"the GPU's context is lost: {error}") from error

    def record_event(self) -> Event:
        return recorded().query

    @torch.inference_mode()
    def launch(self, plan: ForwardPlan) -> CudaForward:
        # The current device belongs to a thread, and this one did not build the graphs.
        torch.cuda.set_device(self._arena.bytes.device)
        rows = self._sequences.apply(plan)
        prompts: PromptRows | None = None
        failure: Exception | None = None
        if plan.has_pictures:
            try:
                prompts = self._with_pictures(plan, rows)
            except (RowsGone, PicturesUnsupported) as error:
                failure = error
        if failure is None:
            rows = self._folded(plan, rows)
        else:
            # No row of the plan runs, so none is left to do a fold.
            self._fold(plan, ())
        self._adjustments.apply(plan)
        for item in plan.joined:
            begins = 0 if item.before is None else item.before.begins
            self._sampling.join(item.batch_index, item.sampling, begins)
        run_copies(self._arena, plan.copies)
        if failure is not None:
            # All changes of the plan are applied, so runner and engine still agree.
            raise failure
        parts: list[SampledPart] = []
        scores: dict[int, ScoredRows] = {}
        before, started = self._ends, recorded(timed=True)
        if self._drafter is not None:
            rows = self._drafter.first(plan, rows)
        if rows.decodes.any():
            parts += self._decode(plan, rows, rows.decodes.nonzero()[0])
        verified = []
        if self._verifier is not None and rows.verifies.any():
            verified.append(self._verifier.verify(plan, rows, rows.verifies.nonzero()[0]))
        if not (rows.decodes | rows.verifies).all():
            # Packed here, while the device computes the graphs.
            parts += self._prefill(plan, rows, prompts or self._prompts_of(plan, rows), scores)
        # The host reads the sampled tokens while the draft layer guesses.
        ended = recorded(timed=True)
        guessed = {} if self._drafter is None else self._drafter.behind(plan, rows)
        if len(rows):
            # The time of a plan without rows, such as folds, counts to the next forward's wait.
            self._ends = ForwardEnds(ended, recorded(timed=True) if guessed else ended)
        return CudaForward(len(rows), parts, verified, guessed, scores, before, started, ended)

    def _with_pictures(self, plan: ForwardPlan, rows: ResolvedRows) -> PromptRows | None:
        """Return the plan's prompts, with the rows of their pictures; None if there are none.
        Raises PlanError, RowsGone, PicturesUnsupported."""
        if not self._model.sees_pictures:
            raise PicturesUnsupported(
                "a plan has pictures, and this model has no tower here: serve them with one fused "
                "node of one rank, with --vision auto"
            )
        graphed = rows.decodes | rows.verifies
        strays = own_turns(plan, len(rows)) & graphed
        if strays.any():
            raise PlanError(
                f"plan {plan.number} has a picture in row {strays.argmax()}, which is no prompt"
            )
        return None if graphed.all() else self._prompts_of(plan, rows)

    def _prompts_of(self, plan: ForwardPlan, rows: ResolvedRows) -> PromptRows:
        """Return the rows of the plan outside of graphs. Raises PlanError, RowsGone."""
        numbers = (~(rows.decodes | rows.verifies)).nonzero()[0]
        prompts = rows.take(numbers)
        if prompts.at_index.any():
            raise PlanError(f"plan {plan.number} has a prompt with tokens at its batch index")
        slices = self._sequences.slices(plan, prompts, {}, self._find_rows, numbers)
        return PromptRows(numbers, prompts, Batch.pack(slices))

    def _folded(self, plan: ForwardPlan, rows: ResolvedRows) -> ResolvedRows:
        """Launch the plan's folds (storing states after accepted drafts), or leave them to its
        rows. Return its rows. Without space, rows with drafts become one-token rows."""
        if self._drafter is None and (plan.guesses or plan.first_guesses):
            raise PlanError(f"plan {plan.number} asks for guesses; no draft layer is loaded here")
        if self._verifier is None:
            if rows.verifies.any() or plan.folds:
                raise PlanError(f"plan {plan.number} has drafts, which this runner has no room for")
            return rows
        later = rows.batch_indices[rows.verifies].tolist()
        apart = {*plan.left, *(item.batch_index for item in plan.joined)}
        # Guesses before a forward begin with the entry carried by a slot. A copy may be of any
        # slot.
        apart.update(rows.batch_indices[[guess.row for guess in plan.first_guesses]].tolist())
        self._fold(plan, () if plan.copies else {*later} - apart)
        return self._verifier.seated(rows)

    def _fold(self, plan: ForwardPlan, later: Collection[int]) -> None:
        """Launch the plan's folds, and forget the drafts of ended sequences. later: batch indices
        with rows to verify; their folds are left to these. Raises PlanError."""
        if self._verifier is None:
            if plan.folds:
                raise PlanError(f"plan {plan.number} has folds, which this runner has no room for")
            return
        self._verifier.fold(plan.folds, later)
        self._verifier.drop(plan.left)
        if self._stored_drafts is not None:
            self._stored_drafts.drop(plan.left)

    def _decode(
        self, plan: ForwardPlan, rows: ResolvedRows, numbers: NDArray[np.int64]
    ) -> list[SampledPart]:
        """Compute one token for each row with these indices in the plan, by a captured graph."""
        batch_indices = rows.batch_indices[numbers].tolist()
        pages = [self._sequences.pages(batch_index) for batch_index in batch_indices]
        order = self._table.seat(pages)
        numbers = numbers[order]
        seated = rows.take(numbers)
        if self._groups is not None:
            self._groups.seat([pages[place] for place in order], seated)
        known = ~seated.at_index
        if known.any():
            self._last_tokens.put_known(
                seated.batch_indices[known], plan.tokens[seated.tokens_at[known]]
            )
        self._answers.fill(seated, self._sampling)
        logits = self._graphs.replay(len(seated))
        if self._sampling.sees_all(seated):
            logits = self._model.whole(logits)
        if self._sampling.cuts[seated.batch_indices].any():
            draws = self._answers.draws(len(logits))
            sample(logits, draws, self._answers.rows, cut(logits, draws))
            self._last_tokens.put(self._answers.batch_indices(len(logits)), draws.token)
        return self._read(numbers, seated, logits, self._answers)

    def _read(
        self,
        numbers: NDArray[np.int64],
        rows: ResolvedRows,
        logits: torch.Tensor,
        sampled: DeviceBatch,
    ) -> list[SampledPart]:
        """Start to read the tokens sampled for these rows, first by the graph's sampler. Then
        sample rows with adjusted logits again and read their new tokens."""
        tops = self._eager.top(numbers, rows, logits)
        by_graph = sampled.read()
        self._eager.follow(rows, SampledOnce(by_graph))
        parts = [SampledPart(numbers, by_graph, tops)]
        eager = self._eager.draw(rows, logits)
        if eager is not None:
            chosen, anew = eager
            parts.append(SampledPart(numbers[chosen], anew))
        return parts

    def _prefill(
        self,
        plan: ForwardPlan,
        rows: ResolvedRows,
        prompts: PromptRows,
        scores: dict[int, ScoredRows],
    ) -> list[SampledPart]:
        """Compute these rows of the plan, of any length. Add scores of prompts to `scores`."""
        numbers, batch = prompts.numbers, prompts.batch
        hooks = self._ticks or NullHooks()
        found = self._model.run(batch, self._arena, hooks)
        if plan.scored:
            starts = dict(zip(numbers.tolist(), batch.cu_seqlens.tolist()[:-1], strict=True))
            scored = score_prompts(plan, rows, starts, found.head, self._arena.bytes.device)
            scores.update({row: found.read() for row, found in scored.items()})
        parts = self._draw_prompts(prompts, found)
        # Sample the tokens first, so a caller that needs only a token does not wait for the draft
        # layer.
        if self._arena.layout.draft_layers:
            found.keep_entries(hooks)
        return parts

    def _draw_prompts(self, of: PromptRows, found: ForwardResult) -> list[SampledPart]:
        """Sample a token at the end of each prompt wanting one. found: the batch's layers."""
        numbers, prompts, batch = of.numbers, of.rows, of.batch
        drawing = prompts.num_sampled.nonzero()[0]
        if not len(drawing):
            return []
        ends = batch.cu_seqlens[1:] - 1
        last = ends[drawing].pin_memory().to(self._arena.bytes.device, non_blocking=True)
        logits = found.head(last)
        sampled = prompts.take(drawing)
        self._prompts.fill(sampled, self._sampling)
        draws = self._prompts.draws(len(sampled))
        kept = cut(logits, draws) if self._sampling.cuts[sampled.batch_indices].any() else None
        sample(logits, draws, self._prompts.rows, kept)
        self._last_tokens.put(self._prompts.batch_indices(len(sampled)), draws.token)
        return self._read(numbers[drawing], sampled, logits, self._prompts)
