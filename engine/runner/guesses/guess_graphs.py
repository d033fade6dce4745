"""A guess of the draft layer as CUDA graphs, one a padded batch size: from the tokens drawn last to
a draft behind each, and to what the next guess starts from.

Owns the graphs, their memory and the logits, which all of them leave in one place.
"""

from bisect import bisect_left

import torch
from torch import Tensor

from tasuki.engine.runner.cuda_graphs import no_collection
from tasuki.engine.runner.padded_sizes import padded_sizes
from tasuki.model.backends.triton_backend import TritonBackend
from tasuki.model.ops.sampling.sample import sample
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
    ) -> None:
        """Capture a graph for every size up to table's rows. Nothing of the arena is touched: while
        rows counts no row, the operators leave it alone."""
        self._model = model
        self._backend = backend
        self._arena = arena
        self._rows = rows
        self._table = table
        self._scratch = backend.scratch(table.shape[0])
        self._sizes = padded_sizes(table.shape[0])
        self._logits = torch.empty(
            self._sizes[-1], model.config.vocab, dtype=torch.float32, device=arena.bytes.device
        )
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        rows.clear()
        pool = torch.cuda.graph_pool_handle()
        # The largest first: the smaller ones then live in the memory that it took.
        for size in reversed(self._sizes):
            # Kernels are compiled and libraries find their workspaces outside of the capture.
            self._step(size)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with no_collection(), torch.cuda.graph(graph, pool=pool):
                self._step(size)
            self._graphs[size] = graph

    def replay(self, count: int) -> Tensor:
        """One guess of each of `count` rows; their logits [count, vocab], which the next replay
        overwrites. REQUIRES: rows have begun, the table is written."""
        self._graphs[self._sizes[bisect_left(self._sizes, count)]].replay()
        return self._logits[:count]

    @torch.inference_mode()
    def _step(self, size: int) -> None:
        rows = self._rows
        batch = rows.batch(size, self._table)
        operators = self._backend.bind_decode(batch, self._scratch).drafts(rows.counts)
        draws, hidden = rows.draws(size), rows.hidden(size)
        found, after = self._model.guess(draws.token, hidden, operators, self._arena)
        logits = self._logits[:size]
        logits.copy_(found)
        hidden.copy_(after)
        sample(logits, draws, rows.rows)
