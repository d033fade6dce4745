"""A forward of a request whose prompt, or the beginning of it, is still landing, on a thread of its
own: the first decode step behind a hand-over, or the prompt's rest behind a load.

Owns that thread, and on a GPU its stream (OwnStream: work launched there is waited for there; on a
device without streams all has ended when its call returns). One step runs at a time. Knows slots
and pages as ids and the awaited bytes as a barrier; decides nothing: its caller begins steps. Its
model shares the weights with the engine's; calls of both may overlap, since no page or slot is
written by both.
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
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol, TypedDict

import torch

from tasuki.engine.request import Ahead, PlannedCheckpoint, Request
from tasuki.engine.runner.logits import logit_adjuster
from tasuki.engine.scheduling.checkpoints import plan_checkpoints
from tasuki.engine.tiers.copy_job import LoadBarrier
from tasuki.model.forward import Batch, LayerHooks, SequenceSlice
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.model.ops.sampling.logit_adjustments import (
    AdjustedRows,
    LogitAdjuster,
    TokensBefore,
    adjusted,
)
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.reference import Sampled, sample
from tasuki.model.qwen3_5 import Qwen35Model
from tasuki.pycache._cpp_cache import Allocation
from tasuki.pycache.arena import Arena
from tasuki.pycache.prefix_cache import HybridPrefixCache
from tasuki.utils.signatures import Notice
from tasuki.utils.system import name_this_thread, shorten_lock_turns


class OwnStream(Protocol):
    def entered(self) -> AbstractContextManager[object]:
        """What is launched inside goes to this stream."""

    def synchronize(self) -> None:
        """Return once nothing that was launched here runs or will. Raises what the device says
        where that cannot be known."""


class HostStream:
    def entered(self) -> AbstractContextManager[object]:
        return nullcontext()

    def synchronize(self) -> None:
        """Calls have returned, so nothing runs."""


class DeviceStream:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def entered(self) -> AbstractContextManager[object]:
        # The current device belongs to a thread.
        torch.cuda.set_device(self._device)
        stream: AbstractContextManager[object] = torch.cuda.stream(self._stream)
        return stream

    def synchronize(self) -> None:
        self._stream.synchronize()


def own_stream(device: torch.device) -> OwnStream:
    return HostStream() if device.type == "cpu" else DeviceStream(device)


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
    """grammars: the engine's. prepare: once on the thread of the steps, before the first. on_end:
    called there after each; must return at once. stream: makes the one of all steps; the arena's
    device's own by default."""

    def __init__(
        self,
        model: Qwen35Model,
        arena: Arena,
        grammars: GrammarCompiler,
        on_end: Notice = lambda: None,
        prepare: Notice = lambda: None,
        stream: Callable[[], OwnStream] | None = None,
    ) -> None:
        self._new_stream = stream or (lambda: own_stream(arena.bytes.device))
        self._stream: OwnStream | None = None
        self._model = model
        self._arena = arena
        self._grammars = grammars
        self._on_end = on_end
        self._prepare = prepare
        self._running: EarlyStep | None = None
        # A step launches a thousand times, while the engine's loop computes too.
        shorten_lock_turns()
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="tasuki-early-step", initializer=name_this_thread
        )

    def adjuster(self, request: Request) -> LogitAdjuster | None:
        """Of the logits behind the tokens that are known; None where its sampling adjusts none."""
        sampling = request.sampling
        if not sampling.adjusts:
            return None
        before = TokensBefore.of(sampling, request.prompt, request.output)
        return logit_adjuster(sampling, before, self._model.config, self._grammars)

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


class BehindCounts(TypedDict):
    """begun: forwards; busy: that were not begun since another one ran; joined: whose tokens
    counted; dropped: whose load failed, or that broke."""

    begun: int
    busy: int
    joined: int
    dropped: int


@dataclass(frozen=True)
class PrefillBehind:
    """kept: checkpoints that it stores, each with its slot. stop: tokens of the request behind it.
    is_alone: whether the state that it began with is intact behind it, whatever became of it."""

    step: EarlyStep
    stop: int
    kept: tuple[tuple[PlannedCheckpoint, int], ...]
    is_alone: bool

    @property
    def ended(self) -> bool:
        return self.step.ended

    def wait(self, seconds: float) -> None:
        """Until it has ended, at most so long."""
        self.step.wait(seconds)

    @property
    def spoiled(self) -> bool:
        """Whether it wrote over what was loaded and is of no use itself."""
        return not self.is_alone and not self.step.computed


class PrefillsBehind:
    """The part of a prompt behind a load, computed while that goes on.

    Owns the thread of these forwards (EarlySteps), one at a time, and what is held by the
    one that runs; the load is the tiers'. Thread rule: the engine loop.
    Invariants:
    1. A layer is computed once the load has brought all that it reads. That this is what was
       written shows only at the load's end: until then nothing that was computed is in the tree,
       drawn or given to anybody, and where the load fails it is forgotten with the allocation.
    2. It writes pages and slots of the allocation alone, which are nobody else's before it has
       ended.
    """

    def __init__(self, cache: HybridPrefixCache, steps: EarlySteps, most_tokens: int) -> None:
        """most_tokens: of a forward."""
        self._cache = cache
        self._steps = steps
        self._most = most_tokens
        self.counts: BehindCounts = {"begun": 0, "busy": 0, "joined": 0, "dropped": 0}

    def prepare(self) -> None:
        """May take seconds on a GPU."""
        self._steps.prepare()

    def close(self) -> None:
        """Cancel what runs and wait for its end."""
        self._steps.close()

    def begin(
        self, request: Request, allocation: Allocation, barrier: LoadBarrier, *, draws: bool
    ) -> PrefillBehind | None:
        """Of the tokens behind the allocation's load, as many as a forward takes; None where there
        are none, or another one runs. draws: whether the token behind the last one may be drawn
        here; else the last one is left. REQUIRES: nothing of the load is awaited or landed yet."""
        assert allocation.load is not None
        start = allocation.load.boundary
        is_drawn = draws and request.sampling.draws and request.scoring is None
        stop = min(request.length if is_drawn else request.length - 1, start + self._most)
        is_drawn = is_drawn and stop == request.length
        if stop <= start:
            return None
        if not self._steps.is_free:
            self.counts["busy"] += 1
            return None
        kept = self._checkpoints(request, allocation, start, stop)
        slots = allocation.working_slots
        step = EarlyStep(
            barrier,
            SequenceSlice(
                token_ids=request.token_slice(start, stop),
                start=start,
                pages=allocation.pages.tolist(),
                read_slot=slots[0],
                write_slot=slots[-1],
                checkpoints=[(planned.position, slot) for planned, slot in kept],
            ),
            request.sampling if is_drawn else None,
            self._steps.adjuster(request) if is_drawn else None,
        )
        self._steps.begin(step)
        self.counts["begun"] += 1
        return PrefillBehind(step, stop, kept, len(slots) > 1)

    def _checkpoints(
        self, request: Request, allocation: Allocation, start: int, stop: int
    ) -> tuple[tuple[PlannedCheckpoint, int], ...]:
        """Those up to `stop` for which there are slots."""
        found = []
        for planned in plan_checkpoints(
            request.length,
            start,
            allocation.match,
            request.marks,
            request.branch_points,
            request.message_end,
        ):
            if planned.position <= stop:
                slot = self._cache.take_checkpoint_slot(allocation)
                if slot is not None:
                    found.append((planned, slot))
        return tuple(found)

    def take(self, behind: PrefillBehind, allocation: Allocation) -> Ahead | None:
        """What the request goes on from; its checkpoints are in the tree. REQUIRES: the load has
        landed, and this has ended."""
        if not behind.step.computed:
            self.counts["dropped"] += 1
            return None
        self.counts["joined"] += 1
        for planned, slot in behind.kept:
            self._cache.insert_midway(allocation, planned.position, slot, planned.kind)
        return Ahead(behind.stop, behind.step.sampled)

    def drop(self) -> None:
        """A forward is of no use: its load failed, or nobody wants it."""
        self.counts["dropped"] += 1
