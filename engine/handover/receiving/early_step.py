"""The first decode step of a request whose prompt is still landing, on a thread of its own.

Owns that thread, and on a GPU its stream; one step runs at a time. Knows slots and pages as ids and
the room as a barrier; decides nothing: early_start.py does. Its model shares the weights with the
engine's; calls of both may overlap, since no page or slot is written by both.
Thread rule: the engine loop begins and cancels steps; a step waits and computes on the thread here.
On a GPU that thread waits for each layer's window on the host and then launches the layer on its
own stream.
Invariants:
1. Layer l is computed after the barrier let it through, that is when nothing remote writes l.
2. A step reads the received working slot and writes the other one, and KV at one position: just
   what a step of the batch would write for the same token. A step that is dropped is forgotten by
   forgetting its result.
3. Whoever owns the ids keeps them until `ended`: a cancelled step may be inside a layer, and what
   it launched may run long after the host gave it up. So `ended` is set in one place, behind a wait
   for the stream, whichever way the step went; where that wait fails the ids are kept for good.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from tasuki.model.backends.own_stream import OwnStream, own_stream
from tasuki.model.batch import Batch, SequenceSlice
from tasuki.model.config import ModelConfig
from tasuki.model.hooks import LayerHooks
from tasuki.model.ops.sampling.logit_adjustments import AdjustedRows, LogitAdjuster, adjusted
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.reference import Sampled, sample
from tasuki.model.qwen3_5 import Qwen35Model
from tasuki.pycache.arena import Arena
from tasuki.transfer.receiving.layer_barrier import LayerBarrier
from tasuki.utils.os_threads import name_this_thread

log = logging.getLogger(__name__)


class _Shut(Exception):
    """The barrier will not open any more."""


@dataclass
class EarlyStep:
    """sequence: one token, the last one known. adjuster: of the logits behind it, if any. seconds:
    of computing, without what was waited."""

    barrier: LayerBarrier
    sequence: SequenceSlice
    sampling: SamplingParams
    adjuster: LogitAdjuster | None = None
    sampled: Sampled | None = None
    seconds: float | None = None
    _ended: threading.Event = field(default_factory=threading.Event)

    @property
    def ended(self) -> bool:
        """From then on it touches nothing; sampled is its token, None where it was dropped."""
        return self._ended.is_set()

    def cancel(self) -> None:
        """It ends before the next layer. Idempotent."""
        self.barrier.close()


class _Gate(LayerHooks):
    """No layer before its window."""

    def __init__(self, barrier: LayerBarrier) -> None:
        self._barrier = barrier
        self.waited = 0.0

    def before_layer(self, layer: int) -> None:
        began = time.monotonic()
        if not self._barrier.wait(layer):
            raise _Shut
        self.waited += time.monotonic() - began


class EarlySteps:
    """prepare: once on the thread of the steps, before the first. on_end: called there after each;
    must return at once. stream: makes the stream of a step; the arena's device's own by default."""

    def __init__(
        self,
        model: Qwen35Model,
        arena: Arena,
        on_end: Callable[[], None],
        prepare: Callable[[], None] = lambda: None,
        stream: Callable[[], OwnStream] | None = None,
    ) -> None:
        self._stream = stream or (lambda: own_stream(arena.bytes.device))
        self._model = model
        self._arena = arena
        self._on_end = on_end
        self._prepare = prepare
        self._running: EarlyStep | None = None
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="tasuki-early-step", initializer=name_this_thread
        )

    @property
    def model_config(self) -> ModelConfig:
        return self._model.config

    def prepare(self) -> None:
        """May take seconds on a GPU."""
        self._thread.submit(self._prepare).result()

    def close(self) -> None:
        """Cancel what runs, wait for its end; nothing is begun any more."""
        if self._running is not None:
            self._running.cancel()
        self._thread.shutdown()

    def begin(self, step: EarlyStep) -> bool:
        """Start it, unless another one runs."""
        if self._running is not None and not self._running.ended:
            return False
        self._running = step
        self._thread.submit(self._run, step)
        return True

    def _run(self, step: EarlyStep) -> None:
        stream = None
        try:
            stream = self._stream()
            with stream.entered():
                self._compute(step)
        except _Shut:
            pass
        except Exception:
            # The request decodes in the batch instead.
            log.exception("an early step broke")
        finally:
            self._end(step, stream)

    def _end(self, step: EarlyStep, stream: OwnStream | None) -> None:
        try:
            if stream is not None:
                stream.synchronize()
        except Exception:
            log.exception("an early step's stream cannot be waited for: its ids are kept for good")
        else:
            step._ended.set()
        self._on_end()

    def _compute(self, step: EarlyStep) -> None:
        gate = _Gate(step.barrier)
        began = time.monotonic()
        sequence = step.sequence
        with torch.inference_mode():
            logits = self._model.forward(Batch.pack([sequence]), self._arena, gate)
            position = sequence.start + len(sequence.token_ids)
            scores = None
            if step.adjuster is not None:
                scores = adjusted(logits, AdjustedRows.of([step.adjuster]).to(logits.device))
            # Reads the token on the host, which on a GPU waits for the stream.
            (sampled,) = sample(logits, [step.sampling], [position], scores)
        step.seconds = time.monotonic() - began - gate.waited
        step.sampled = sampled
