"""Ticks the step counter when a GPU has finished a layer.

Owns one thread, which waits for the event recorded behind each layer and ticks: the thread of the
forward only records. Thread rule: after_layer on the engine loop's thread; the thread here is the
only one that ticks the counter.
"""

import threading
from queue import SimpleQueue

import torch
from torch import Tensor

from ..transfer.steps import StepCounter


class EventTicks:
    """`model.hooks.LayerHooks`. launched: the counter's value once all recorded events passed."""

    def __init__(self, steps: StepCounter) -> None:
        self._steps = steps
        self._events: SimpleQueue[torch.cuda.Event] = SimpleQueue()
        self.launched = steps.value
        threading.Thread(target=self._tick, name="tasuki-ticks", daemon=True).start()

    def before_layer(self, layer: int) -> None:
        """Nothing to wait for: every input of this forward is ordered before it in the stream."""

    def after_layer(self, layer: int, branch: Tensor, residual: Tensor) -> None:
        # Blocking, so that the waiting thread sleeps instead of polling beside the forward's.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record()
        self.launched += 1
        self._events.put(event)

    def _tick(self) -> None:
        while True:
            self._events.get().synchronize()
            self._steps.tick()
