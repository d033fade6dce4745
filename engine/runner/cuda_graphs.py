"""Captured CUDA graphs: of decode steps, of the verification of drafts, and of the draft layer's
guesses. Thread rule: the runner's; one stream."""

import gc
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import product

import torch
from torch import Tensor

from tasuki.model.attention_split import AttentionSplit
from tasuki.model.forward import LayerHooks, NullHooks
from tasuki.model.ops.attention.spans.groups import SpanGroups
from tasuki.model.ops.draft.chain import chain_advance, chain_begin
from tasuki.model.ops.sampling.sample import sample
from tasuki.model.ops.sampling.top_k_top_p import cut
from tasuki.model.protocol import GpuModel, VerifySteps
from tasuki.pycache.arena import Arena
from tasuki.utils.logs import Progress, no_progress
from tasuki.utils.signatures import Notice

from .device_batch import DeviceBatch, LastTokens
from .draft_rows import DraftedRows, GuessRows
from .rows import padded_sizes, widths


class DecodeGraphs:
    """Decode steps as CUDA graphs, one per padded batch size. Each computes from the last sampled
    tokens to the next ones.

    Owns the graphs and their memory. A replay reads rows, pages and batch indices from buffers of
    fixed address and writes tokens back to the batch indices. So the next replay needs nothing from
    the host.
    """

    def __init__(
        self,
        model: GpuModel,
        arena: Arena,
        rows: DeviceBatch,
        table: Tensor,
        last_tokens: LastTokens,
        progress: Progress = no_progress,
        split: AttentionSplit = AttentionSplit.SHARES,
    ) -> None:
        """Capture a graph for every padded batch size up to the block table's rows. split: division
        of the rows' keys. The arena is not changed: while `rows` counts no row, the operators write
        nothing to it."""
        self._model = model
        self._arena = arena
        self._rows = rows
        self._table = table
        self._last_tokens = last_tokens
        self._sizes = padded_sizes(table.shape[0])
        self._steps = model.decode_steps(table.shape[0], split)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._logits: dict[int, Tensor] = {}
        rows.clear()
        pool = torch.cuda.graph_pool_handle()
        # Capture the largest first: the smaller ones then reuse its memory.
        for size in reversed(self._sizes):
            # Kernels are compiled and libraries find their workspaces outside of the capture.
            self._step(size)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with no_collection(), torch.cuda.graph(graph, pool=pool):
                self._logits[size] = self._step(size)
            self._graphs[size] = graph
            progress(len(self._graphs), len(self._sizes))

    @property
    def groups(self) -> SpanGroups | None:
        """Return the memory for each step's plan of rows that share pages; None without spans."""
        return self._steps.groups

    def replay(self, count: int) -> Tensor:
        """Sample one token for each of `count` rows. Return the logits [padded batch size, vocab],
        as in StepResult.own_head(); the next replay overwrites them. REQUIRES: rows are filled,
        the block table is written, every batch index holds a token."""
        size = self._sizes[bisect_left(self._sizes, count)]
        self._graphs[size].replay()
        return self._logits[size]

    @torch.inference_mode()
    def _step(self, size: int) -> Tensor:
        rows, batch_indices = self._rows, self._rows.batch_indices(size)
        batch = rows.decode_batch(size, self._table)
        tokens = self._last_tokens.tokens(batch_indices)
        logits = self._steps.run(tokens, batch, self._arena).own_head()
        draws = rows.draws(size)
        sample(logits, draws, rows.rows, of=self._model.own_slice)
        self._last_tokens.put(batch_indices, draws.token)
        return logits


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable Python's garbage collection during a capture. If it freed an older engine's graphs,
    for example, the capture would become invalid."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_FIRST_SHARE = 6
"""The first of a step's two graphs has 1 / _FIRST_SHARE of the layers. The device computes them in
about the time the host needs to launch the others."""


class SplitGraph:
    """A step as two CUDA graphs, the first with a few layers. The device computes it while the host
    launches the second. The launch takes half a millisecond for a thousand kernels.

    This matters if the device waits for the host, as with drafts. A step planned ahead is launched
    long before it begins.
    """

    def __init__(
        self,
        step: Callable[[LayerHooks], object],
        layers: int,
        capture: Callable[[torch.cuda.CUDAGraph], AbstractContextManager[None]],
    ) -> None:
        """Capture the step, a forward of `layers` layers. capture: torch.cuda.graph with its memory
        pool. REQUIRES: the step has run before, so kernels and workspaces exist."""
        self._first, self._rest = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with no_collection(), ExitStack() as captured:

            def go_on_in(graph: torch.cuda.CUDAGraph) -> None:
                captured.close()
                captured.enter_context(capture(graph))

            go_on_in(self._first)
            step(_Cut(layers // _FIRST_SHARE, lambda: go_on_in(self._rest)))

    def replay(self) -> None:
        self._first.replay()
        self._rest.replay()


class _Cut(LayerHooks):
    def __init__(self, layer: int, cut: Notice) -> None:
        """layer: index of the last layer before the cut. cut: called once it is captured."""
        self._layer = layer
        self._cut = cut

    def after_layer(self, layer: int, stream: Callable[[], Tensor]) -> None:
        if layer == self._layer:
            self._cut()


class VerifyGraphs:
    """Verification of rows with drafts as CUDA graphs, two per padded batch size and row length.
    They compute all tokens of the rows and sample one token after each.

    Owns the graphs, their memory and the logits. All graphs write the logits to one place: separate
    places would take gigabytes.
    """

    def __init__(
        self,
        model: GpuModel,
        arena: Arena,
        rows: DraftedRows,
        table: Tensor,
        steps: VerifySteps,
        drafts: Tensor | None,
    ) -> None:
        """Capture a graph for every padded batch size up to the block table's rows and every row
        length up to the steps'. The arena is not changed: while `rows` counts no row, the
        operators write nothing to it. drafts [batch indices, most drafts of a row]: drafts stored
        at batch indices; None if there are never any."""
        self._model = model
        self._arena = arena
        self._rows = rows
        self._table = table
        self._steps = steps
        self._drafts = drafts
        self._sizes = padded_sizes(table.shape[0])
        self._widths = widths(steps.tokens - 1)
        self._logits = torch.empty(
            self._sizes[-1] * self._widths[-1],
            model.config.own_vocab,
            dtype=model.weights.dtype,
            device=arena.bytes.device,
        )
        self._graphs: dict[tuple[int, int], SplitGraph] = {}
        rows.clear()
        capture = partial(torch.cuda.graph, pool=torch.cuda.graph_pool_handle())
        layers = model.config.layers
        # Capture the largest first: the smaller ones then reuse its memory.
        for size in reversed(self._sizes):
            for width in reversed(self._widths):
                step = partial(self._step, size, width)
                # Kernels are compiled and libraries find their workspaces outside of the capture.
                step(NullHooks())
                torch.cuda.synchronize()
                self._graphs[size, width] = SplitGraph(step, layers, capture)

    def width(self, tokens: int) -> int:
        """Return the captured row length for rows of `tokens` tokens: the next one, in tokens."""
        return self._widths[bisect_left(self._widths, tokens)]

    def replay(self, count: int, width: int) -> Tensor:
        """Sample a token after each token of `count` rows of `width` tokens. Return the logits [at
        least count * width, vocab], as in StepResult.own_head(); the next replay overwrites them.
        REQUIRES: rows are filled, the block table is written; width is a result of width()."""
        size = self._sizes[bisect_left(self._sizes, count)]
        self._graphs[size, width].replay()
        return self._logits[: size * width]

    @torch.inference_mode()
    def _step(self, size: int, width: int, hooks: LayerHooks) -> None:
        """Run the verification step eagerly or during a capture. hooks: called around the model's
        layers."""
        batch = self._rows.batch(size, width, self._table)
        if self._drafts is None:
            tokens = self._rows.ids(size, width)
        else:
            tokens = self._rows.take_drafts(size, width, self._drafts)
        logits = self._logits[: size * width]
        logits.copy_(self._steps.run(tokens, batch, self._arena, hooks).own_head())
        draws = self._rows.draws(size, width)
        sample(logits, draws, self._rows.tokens, of=self._model.own_slice)


class GuessGraphs:
    """The draft layer's guesses as CUDA graphs, one per padded batch size and number of guesses.
    Each guess continues the previous one, from the last sampled token. All guesses are stored at
    the rows' batch indices.

    Owns the graphs and their memory. Sampling from a part of the vocabulary (top_k, top_p) has
    graphs of its own. Finding the part takes longer than the rest of a small sampling.
    """

    def __init__(
        self, model: GpuModel, arena: Arena, rows: GuessRows, table: Tensor, drafts: Tensor
    ) -> None:
        """Capture a graph for every padded batch size up to the block table's rows and every number
        of guesses. drafts [batch indices, most guesses]: destination of the guesses. The arena is
        not changed: while `rows` counts no row, the operators write nothing to it."""
        self._model = model
        self._arena = arena
        self._rows = rows
        self._table = table
        self._drafts = drafts
        self._steps = model.decode_steps(table.shape[0])
        self._sizes = padded_sizes(table.shape[0])
        self._graphs: dict[tuple[int, int, bool], torch.cuda.CUDAGraph] = {}
        rows.clear()
        pool = torch.cuda.graph_pool_handle()
        counts = range(1, drafts.shape[1] + 1)
        # Capture the largest first: the smaller ones then reuse its memory.
        for size, cuts in product(reversed(self._sizes), (True, False)):
            # Kernels are compiled and libraries find their workspaces outside of the capture.
            self._guess(size, 1, cuts=cuts)
            torch.cuda.synchronize()
            for count in reversed(counts):
                graph = torch.cuda.CUDAGraph()
                with no_collection(), torch.cuda.graph(graph, pool=pool):
                    self._guess(size, count, cuts=cuts)
                self._graphs[size, count, cuts] = graph

    def replay(self, rows: int, count: int, *, cuts: bool) -> None:
        """Make guesses for `rows` rows. count: largest number of guesses of a row; a row with fewer
        is idle in the last ones. cuts: True if a row samples from a part of the vocabulary only.
        REQUIRES: rows are filled, the block table is written."""
        size = self._sizes[bisect_left(self._sizes, rows)]
        self._graphs[size, count, cuts].replay()

    @torch.inference_mode()
    def _guess(self, size: int, count: int, *, cuts: bool) -> None:
        rows, chain = self._rows, self._rows.chain(size)
        batch, draws = rows.batch(size, self._table), rows.draws(size)
        guess = self._steps.guesses(batch, rows.counts, self._arena)
        chain_begin(chain, rows.starts(size), self._model.config.max_position)
        hidden = chain.hidden
        for number in range(count):
            logits, hidden = guess(chain.tokens, hidden)
            ids, kept, of = self._model.draft_ids, None, self._model.own_slice
            if cuts:
                logits, of = self._model.whole(logits), None
                kept = cut(logits, draws)
            sample(logits, draws, rows.rows, kept, ids=ids, of=of)
            chain_advance(chain, rows.batch_indices(size), self._drafts[:, number])
