"""Ticks the step counter when a GPU has written a layer's KV and state.

Owns what waits for the event behind each layer's writes and ticks, on a thread of its own that
never holds the interpreter's lock (cpp_cache/dataplane/stream_ticks.h): the thread of the forward
only records. Thread rule: hooks on the engine loop's thread; the thread there is the only one that
ticks the counter.
"""

from functools import cached_property

import torch
from torch import Tensor

from tasuki.model.hooks import LayerHooks
from tasuki.pycache._cpp_cache import CudaContext, StreamTicks
from tasuki.transfer.windows.step_counter import StepCounter


class LayerEvents(LayerHooks):
    """launched: the counter's value once all recorded events passed."""

    def __init__(self, steps: StepCounter, layers: int) -> None:
        """layers: of a forward."""
        self._steps = steps
        self._layers = layers
        self.launched = steps.value

    @cached_property
    def _ticks(self) -> StreamTicks:
        # Of the device that the forward's thread has, which may not be the one that built this.
        return StreamTicks(CudaContext(torch.cuda.current_device()), self._steps)

    def cache_written(self, layer: int) -> None:
        self.launched += 1
        self._ticks.tick_behind(torch.cuda.current_stream().cuda_stream)

    def after_layer(self, layer: int, branch: Tensor, residual: Tensor) -> None:
        if layer == self._layers - 1:
            self._ticks.end_behind(torch.cuda.current_stream().cuda_stream)
