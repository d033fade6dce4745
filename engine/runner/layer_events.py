"""Ticks the step counter when a GPU has written a layer's KV and state.

Owns one thread, which waits for the event recorded behind each layer's writes and ticks: the thread
of the forward only records. Thread rule: hooks on the engine loop's thread; the thread here is the
only one that ticks the counter.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue

import torch
from torch import Tensor

from tasuki.model.hooks import LayerHooks
from tasuki.transfer.windows.step_counter import StepCounter
from tasuki.utils.os_threads import name_this_thread


class LayerEvents(LayerHooks):
    """launched: the counter's value once all recorded events passed."""

    def __init__(self, steps: StepCounter, layers: int) -> None:
        """layers: of a forward."""
        self._steps = steps
        self._layers = layers
        self._events: SimpleQueue[tuple[torch.cuda.Event, Callable[[], None]]] = SimpleQueue()
        self.launched = steps.value
        threading.Thread(target=self._tick, name="tasuki-ticks", daemon=True).start()

    def cache_written(self, layer: int) -> None:
        self.launched += 1
        self._once_passed(self._steps.tick)

    def after_layer(self, layer: int, branch: Tensor, residual: Tensor) -> None:
        if layer == self._layers - 1:
            self._once_passed(self._steps.end_forward)

    def _once_passed(self, report: Callable[[], None]) -> None:
        """Once all that was enqueued has ended."""
        # Blocking, so that the waiting thread sleeps instead of polling beside the forward's.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record()
        self._events.put((event, report))

    def _tick(self) -> None:
        name_this_thread()
        while True:
            event, report = self._events.get()
            event.synchronize()
            report()
