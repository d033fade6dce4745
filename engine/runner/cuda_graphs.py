"""Decode steps as CUDA graphs, one a padded batch size, from the drawn tokens to the next ones.

Owns the graphs and their memory. A replay reads its rows, pages and lanes from buffers of fixed
address and writes tokens back to the lanes, so that the next replay needs nothing from the host.
"""

import gc
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from tasuki.model.backends.triton_backend import TritonBackend
from tasuki.model.ops.sampling.sample import sample
from tasuki.model.qwen3_5 import Qwen35Model
from tasuki.pycache.arena import Arena
from tasuki.utils.progress import Progress, no_progress

from .device_batch import DeviceBatch
from .last_tokens import LastTokens
from .padded_sizes import padded_sizes


class DecodeGraphs:
    def __init__(
        self,
        model: Qwen35Model,
        backend: TritonBackend,
        arena: Arena,
        rows: DeviceBatch,
        table: Tensor,
        lanes: LastTokens,
        progress: Progress = no_progress,
    ) -> None:
        """Capture a graph for every size up to table's rows. Nothing of the arena is touched: while
        rows counts no row, the operators leave it alone."""
        self._model = model
        self._backend = backend
        self._arena = arena
        self._rows = rows
        self._table = table
        self._lanes = lanes
        self._sizes = padded_sizes(table.shape[0])
        self._scratch = backend.scratch(table.shape[0])
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._logits: dict[int, Tensor] = {}
        rows.clear()
        pool = torch.cuda.graph_pool_handle()
        # The largest first: the smaller ones then live in the memory that it took.
        for size in reversed(self._sizes):
            # Kernels are compiled and libraries find their workspaces outside of the capture.
            self._step(size)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with no_collection(), torch.cuda.graph(graph, pool=pool):
                self._logits[size] = self._step(size)
            self._graphs[size] = graph
            progress(len(self._graphs), len(self._sizes))

    def replay(self, count: int) -> Tensor:
        """One token for each of `count` rows; their logits [padded, vocab], as of
        Qwen35Model.own_head(), which the next replay overwrites. REQUIRES: rows are filled, the
        table is written, lanes hold tokens."""
        size = self._sizes[bisect_left(self._sizes, count)]
        self._graphs[size].replay()
        return self._logits[size]

    @torch.inference_mode()
    def _step(self, size: int) -> Tensor:
        rows, lanes = self._rows, self._rows.lanes(size)
        batch = rows.decode_batch(size, self._table)
        operators = self._backend.bind_decode(batch, self._scratch)
        tokens = self._lanes.tokens(lanes)
        branch, residual = self._model.step(tokens, operators, self._arena)
        logits = self._model.own_head(branch, residual, operators)
        draws = rows.draws(size)
        sample(logits, draws, rows.rows, of=self._model.own_slice)
        self._lanes.put(lanes, draws.token)
        return logits


@contextmanager
def no_collection() -> Iterator[None]:
    """What a garbage collection frees meanwhile, as the graphs of an engine before this one, would
    invalidate the capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
