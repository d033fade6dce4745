"""Steps of rows with drafts as CUDA graphs, two a padded batch size and number of tokens a row:
from the tokens to a draw behind each.

Owns the graphs, their memory and the logits, which all of them leave in one place: kept apart they
would take gigabytes.
"""

from bisect import bisect_left
from functools import partial

import torch
from torch import Tensor

from tasuki.engine.runner.padded_sizes import padded_sizes
from tasuki.model.backends.triton_backend import TritonBackend
from tasuki.model.backends.triton_verify import VerifyScratch
from tasuki.model.hooks import LayerHooks, NullHooks
from tasuki.model.ops.sampling.sample import sample
from tasuki.model.qwen3_5 import Qwen35Model
from tasuki.pycache.arena import Arena

from .drafted_rows import DraftedRows
from .split_graph import SplitGraph
from .token_rows import widths


class VerifyGraphs:
    def __init__(
        self,
        model: Qwen35Model,
        backend: TritonBackend,
        arena: Arena,
        rows: DraftedRows,
        table: Tensor,
        scratch: VerifyScratch,
        drafts: Tensor | None,
    ) -> None:
        """drafts [lanes, most of a row]: that are on lanes, if any ever are. Capture a graph for
        every size up to table's rows and every width up to what the scratch holds. Nothing of the
        arena is touched: while rows counts no row, the operators leave it alone."""
        self._model = model
        self._backend = backend
        self._arena = arena
        self._rows = rows
        self._table = table
        self._scratch = scratch
        self._drafts = drafts
        self._sizes = padded_sizes(table.shape[0])
        self._widths = widths(scratch.kept.tokens - 1)
        self._logits = torch.empty(
            self._sizes[-1] * self._widths[-1],
            model.weights.head.shape[0],
            dtype=model.weights.dtype,
            device=arena.bytes.device,
        )
        self._graphs: dict[tuple[int, int], SplitGraph] = {}
        rows.clear()
        capture = partial(torch.cuda.graph, pool=torch.cuda.graph_pool_handle())
        layers = len(model.weights.layers)
        # The largest first: the smaller ones then live in the memory that it took.
        for size in reversed(self._sizes):
            for width in reversed(self._widths):
                step = partial(self._step, size, width)
                # Kernels are compiled and libraries find their workspaces outside of the capture.
                step(NullHooks())
                torch.cuda.synchronize()
                self._graphs[size, width] = SplitGraph(step, layers, capture)

    def width(self, tokens: int) -> int:
        """Tokens a row of the graphs that take rows of so many."""
        return self._widths[bisect_left(self._widths, tokens)]

    def replay(self, count: int, width: int) -> Tensor:
        """A draw behind each token of `count` rows of `width` tokens; the logits [at least count *
        width, vocab], as of Qwen35Model.own_head(), which the next replay overwrites. REQUIRES:
        rows are filled, the table is written; width is one of width()."""
        size = self._sizes[bisect_left(self._sizes, count)]
        self._graphs[size, width].replay()
        return self._logits[: size * width]

    @torch.inference_mode()
    def _step(self, size: int, width: int, hooks: LayerHooks) -> None:
        """hooks: of the model's layers."""
        batch = self._rows.batch(size, width, self._table)
        operators = self._backend.bind_verify(batch, self._scratch)
        carry = self._arena.carry[0] if self._arena.layout.draft_layers else None
        operators.fold(self._arena.conv, carry)
        if self._drafts is None:
            tokens = self._rows.ids(size, width)
        else:
            tokens = self._rows.take_drafts(size, width, self._drafts)
        branch, residual = self._model.layers(tokens, operators, self._arena, hooks)
        if self._arena.layout.draft_layers:
            self._model.keep_entries(tokens, branch, residual, operators, self._arena, NullHooks())
        logits = self._logits[: size * width]
        logits.copy_(self._model.own_head(branch, residual, operators))
        draws = self._rows.draws(size, width)
        sample(logits, draws, self._rows.tokens, of=self._model.own_slice)
