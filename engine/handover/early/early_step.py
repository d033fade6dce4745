"""A forward of a request whose prompt, or the beginning of it, is still landing, on a thread of its
own: the first decode step behind a hand-over, or the prompt's rest behind a load.

Owns that thread, and on a GPU its stream; one step runs at a time. Knows slots and pages as ids and
what is awaited as a barrier; decides nothing: who begins it does. Its model shares the
weights with the engine's; calls of both may overlap, since no page or slot is written by both.
Thread rule: the engine loop begins and cancels steps; a step waits and computes on the thread here.
On a GPU that thread waits for each layer's window on the host and then launches the layer on its
own stream.
Invariants:
1. Layer l is computed after the barrier let it through, that is when nobody else writes l.
2. A step writes the slots of its sequence and KV at its positions: just what a step of the batch
   would write for the same tokens. A step that is dropped is forgotten by forgetting its result.
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
from typing import Protocol

import torch

from tasuki.model.backends.own_stream import OwnStream, own_stream
from tasuki.model.config import ModelConfig
from tasuki.model.forward import Batch, LayerHooks, SequenceSlice
from tasuki.model.ops.sampling.logit_adjustments import AdjustedRows, LogitAdjuster, adjusted
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.reference import Sampled, sample
from tasuki.model.qwen3_5 import Qwen35Model
from tasuki.pycache.arena import Arena
from tasuki.utils.system import name_this_thread, shorten_lock_turns

log = logging.getLogger(__name__)


class _Shut(Exception):
    """The barrier will not open any more."""


class Barrier(Protocol):
    """Of the layers of what is landing."""

    def wait(self, layer: int) -> bool:
        """Block until all that is awaited of the layer is here; False if it never will be."""

    def close(self) -> None:
        """Let nobody through any more. Idempotent."""


@dataclass
class EarlyStep:
    """sequence: the last tokens known. sampling: of the one behind them; None: none is drawn.
    adjuster: of the logits behind them, if any. seconds: of computing, without what was waited."""

    barrier: Barrier
    sequence: SequenceSlice
    sampling: SamplingParams | None
    adjuster: LogitAdjuster | None = None
    sampled: Sampled | None = None
    seconds: float | None = None
    _ended: threading.Event = field(default_factory=threading.Event)

    @property
    def ended(self) -> bool:
        """From then on it touches nothing; sampled is its token, None where it was dropped."""
        return self._ended.is_set()

    def wait(self, seconds: float) -> None:
        """Until it has ended, at most so long."""
        self._ended.wait(seconds)

    @property
    def computed(self) -> bool:
        """Whether all layers were. REQUIRES: it has ended."""
        return self.seconds is not None

    def cancel(self) -> None:
        """It ends before the next layer. Idempotent."""
        self.barrier.close()


class _Gate(LayerHooks):
    """No layer before its window."""

    def __init__(self, barrier: Barrier) -> None:
        self._barrier = barrier
        self.waited = 0.0

    def before_layer(self, layer: int) -> None:
        began = time.monotonic()
        if not self._barrier.wait(layer):
            raise _Shut
        self.waited += time.monotonic() - began


class EarlySteps:
    """prepare: once on the thread of the steps, before the first. on_end: called there after each;
    must return at once. stream: makes the one of all steps; the arena's device's own by default."""

    def __init__(
        self,
        model: Qwen35Model,
        arena: Arena,
        on_end: Callable[[], None],
        prepare: Callable[[], None] = lambda: None,
        stream: Callable[[], OwnStream] | None = None,
    ) -> None:
        self._new_stream = stream or (lambda: own_stream(arena.bytes.device))
        self._stream: OwnStream | None = None
        self._model = model
        self._arena = arena
        self._on_end = on_end
        self._prepare = prepare
        self._running: EarlyStep | None = None
        # A step launches a thousand times, while the engine's loop computes too.
        shorten_lock_turns()
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

    @property
    def is_free(self) -> bool:
        return self._running is None or self._running.ended

    def begin(self, step: EarlyStep) -> bool:
        """Start it, unless another one runs."""
        if not self.is_free:
            return False
        self._running = step
        self._thread.submit(self._run, step)
        return True

    def _run(self, step: EarlyStep) -> None:
        try:
            # One for all steps: what is allocated belongs to its stream, and each new one takes as
            # much memory again, in as many calls that wait for the device.
            if self._stream is None:
                self._stream = self._new_stream()
            with self._stream.entered():
                self._compute(step)
        except _Shut:
            pass
        except Exception:
            # The request decodes in the batch instead.
            log.exception("an early step broke")
        finally:
            self._end(step)

    def _end(self, step: EarlyStep) -> None:
        try:
            if self._stream is not None:
                self._stream.synchronize()
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
            if step.sampling is not None:
                step.sampled = self._drawn(step, step.sampling, logits)
        step.seconds = time.monotonic() - began - gate.waited

    @staticmethod
    def _drawn(step: EarlyStep, sampling: SamplingParams, logits: torch.Tensor) -> Sampled:
        position = step.sequence.start + len(step.sequence.token_ids)
        scores = None
        if step.adjuster is not None:
            scores = adjusted(logits, AdjustedRows.of([step.adjuster]).to(logits.device))
        # Reads the token on the host, which on a GPU waits for the stream.
        (sampled,) = sample(logits, [sampling], [position], scores)
        return sampled
