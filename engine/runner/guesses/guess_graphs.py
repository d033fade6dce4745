"""The draft layer's guesses as CUDA graphs, one a padded batch size and number of guesses: from
what was drawn last to so many drafts on the rows' lanes, of which each is behind the one before.

Owns the graphs and their memory. Draws from a part of the vocabulary (top_k, top_p) are graphs of
their own, since finding the part takes longer than all else of a small draw.
"""

from bisect import bisect_left
from itertools import product

import torch
from torch import Tensor

from tasuki.engine.runner.cuda_graphs import no_collection
from tasuki.engine.runner.padded_sizes import padded_sizes
from tasuki.model.backends.triton_backend import TritonBackend
from tasuki.model.ops.draft.chain import chain_advance, chain_begin
from tasuki.model.ops.sampling.sample import sample
from tasuki.model.ops.sampling.top_k_top_p import cut
from tasuki.model.qwen3_5 import Qwen35Model
from tasuki.pycache.arena import Arena

from .guess_rows import GuessRows


class GuessGraphs:
    def __init__(
        self,
        model: Qwen35Model,
        backend: TritonBackend,
        arena: Arena,
        rows: GuessRows,
        table: Tensor,
        drafts: Tensor,
    ) -> None:
        """Capture a graph for every size up to table's rows. drafts [lanes, most guesses]: where
        they go. Nothing of the arena is touched: while rows counts no row, the operators leave it
        alone."""
        self._model = model
        self._backend = backend
        self._arena = arena
        self._rows = rows
        self._table = table
        self._drafts = drafts
        self._scratch = backend.scratch(table.shape[0])
        self._sizes = padded_sizes(table.shape[0])
        self._graphs: dict[tuple[int, int, bool], torch.cuda.CUDAGraph] = {}
        rows.clear()
        pool = torch.cuda.graph_pool_handle()
        counts = range(1, drafts.shape[1] + 1)
        # The largest first: the smaller ones then live in the memory that it took.
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
        """So many guesses of each of so many rows. cuts: whether any row draws from a part of the
        vocabulary only. REQUIRES: they are filled, the table is written."""
        size = self._sizes[bisect_left(self._sizes, rows)]
        self._graphs[size, count, cuts].replay()

    @torch.inference_mode()
    def _guess(self, size: int, count: int, *, cuts: bool) -> None:
        rows, chain = self._rows, self._rows.chain(size)
        batch, draws, lanes = rows.batch(size, self._table), rows.draws(size), rows.lanes(size)
        operators = self._backend.bind_decode(batch, self._scratch).drafts(rows.counts)
        chain_begin(chain, rows.starts(size), self._model.config.max_position)
        hidden = chain.hidden
        for number in range(count):
            logits, hidden = self._model.guess(chain.tokens, hidden, operators, self._arena)
            ids, kept, of = self._model.draft_ids, None, self._model.own_slice
            if cuts:
                logits, of = self._model.whole(logits), None
                kept = cut(logits, draws)
            sample(logits, draws, rows.rows, kept, ids=ids, of=of)
            chain_advance(chain, lanes, self._drafts[:, number])
