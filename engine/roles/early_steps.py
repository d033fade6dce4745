"""A forward on its own thread for a request with KV still arriving. It is the first decode step
after a hand-over, or a prompt's rest after a load.

Owns the thread, and on a GPU its stream: work launched there is waited for there. On a device
without streams all work has ended when its call returns. One step runs at a time. Knows
slots and pages as ids and the awaited bytes as a barrier. Decides nothing: its caller begins steps.
Its model shares the weights with the engine's. Calls of both may overlap, because no page or slot
is written by both.

Thread rule: the engine loop begins and cancels steps; a step waits and computes on this thread. On
a GPU the thread waits on the host for each layer chunk, then launches the layer on its own stream.

Invariants:
1. Layer l is computed after the barrier opened for it: nothing else writes layer l's data then.
2. A step writes only the slots of its sequence and KV at its positions, exactly like a step of the
   batch with the same tokens. A step is dropped by discarding its result.
3. The owner of the pages and slots keeps them until `ended`. A cancelled step may be inside a
   layer, and its launched work may run long after the host gave it up. So `ended` is set in one
   place, after a wait for the stream. If this wait fails, they are kept forever.
"""

import logging
import threading
import time
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
from tasuki.model.protocol import Model
from tasuki.pycache._cpp_cache import Allocation
from tasuki.pycache.arena import Arena
from tasuki.pycache.prefix_cache import HybridPrefixCache
from tasuki.utils.signatures import Notice
from tasuki.utils.system import name_this_thread, shorten_lock_turns


class HostStream:
    def entered(self) -> AbstractContextManager[object]:
        return nullcontext()

    def synchronize(self) -> None:
        """Return immediately: on the host, all work has ended when its call returns."""


class DeviceStream:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def entered(self) -> AbstractContextManager[object]:
        """Return a context manager. Work launched inside goes to this stream."""
        # The current device belongs to a thread.
        torch.cuda.set_device(self._device)
        stream: AbstractContextManager[object] = torch.cuda.stream(self._stream)
        return stream

    def synchronize(self) -> None:
        """Return once no work launched on this stream runs or will run. Raises the device's error
        if this cannot be known."""
        self._stream.synchronize()


log = logging.getLogger(__name__)


class _Shut(Exception):
    """The barrier was closed: it will not open for further layers."""


class Barrier(Protocol):
    """A barrier for each layer of data still arriving."""

    def wait(self, layer: int) -> bool:
        """Block until all awaited data of the layer has arrived. Return False if it never will."""

    def close(self) -> None:
        """Close the barrier, so no step passes any more. Idempotent."""


@dataclass
class EarlyStep:
    """One forward computed on the early thread, while its input still arrives.

    sequence: the tokens to compute, with pages and slots. sampling: parameters for the next token;
    None: no token is sampled. adjuster: changes the logits, if any. sampled: the sampled token.
    seconds: duration without waiting; None before all layers were computed.
    """

    barrier: Barrier
    sequence: SequenceSlice
    sampling: SamplingParams | None
    adjuster: LogitAdjuster | None = None
    sampled: Sampled | None = None
    seconds: float | None = None
    _ended: threading.Event = field(default_factory=threading.Event)

    @property
    def ended(self) -> bool:
        """True if the step has ended: it writes nothing more. `sampled` is its token then; None if
        the step was dropped."""
        return self._ended.is_set()

    def wait(self, seconds: float) -> None:
        """Wait until the step has ended, for at most `seconds`."""
        self._ended.wait(seconds)

    @property
    def computed(self) -> bool:
        """True if all layers of the step were computed. REQUIRES: the step has ended."""
        return self.seconds is not None

    def cancel(self) -> None:
        """Make the step end before its next layer. Idempotent."""
        self.barrier.close()


class _Gate(LayerHooks):
    """Delays each layer of a forward until the layer's data has arrived."""

    def __init__(self, barrier: Barrier) -> None:
        self._barrier = barrier
        self.waited = 0.0

    def before_layer(self, layer: int) -> None:
        began = time.monotonic()
        if not self._barrier.wait(layer):
            raise _Shut
        self.waited += time.monotonic() - began


class EarlySteps:
    """Runs early steps (forwards begun before all their input has arrived) on one thread.

    grammars: the engine's grammar compiler. prepare: called once on the thread, before the first
    step. on_end: called on the thread after each step; must return without waiting.
    """

    def __init__(
        self,
        model: Model,
        arena: Arena,
        grammars: GrammarCompiler,
        on_end: Notice = lambda: None,
        prepare: Notice = lambda: None,
    ) -> None:
        self._stream: HostStream | DeviceStream | None = None
        self._model = model
        self._arena = arena
        self._grammars = grammars
        self._on_end = on_end
        self._prepare = prepare
        self._running: EarlyStep | None = None
        # A step makes a thousand launches while the engine's loop runs Python too.
        shorten_lock_turns()
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="tasuki-early-step", initializer=name_this_thread
        )

    def adjuster(self, request: Request) -> LogitAdjuster | None:
        """Return the request's adjuster of logits for its next token; None if its sampling
        parameters adjust none."""
        sampling = request.sampling
        if not sampling.adjusts:
            return None
        before = TokensBefore.of(sampling, request.prompt, request.output)
        return logit_adjuster(sampling, before, self._model.config, self._grammars)

    def ids_before(self, request: Request, start: int) -> list[int]:
        """Return the request's token ids before position `start`, as many as the model needs."""
        return request.token_slice(max(start - self._model.config.ids_before, 0), start)

    def prepare(self) -> None:
        """Prepare the thread for the first step. May take seconds on a GPU."""
        self._thread.submit(self._prepare).result()

    def close(self) -> None:
        """Cancel the running step and wait for its end. No step begins afterwards."""
        if self._running is not None:
            self._running.cancel()
        self._thread.shutdown()

    @property
    def is_free(self) -> bool:
        return self._running is None or self._running.ended

    def begin(self, step: EarlyStep) -> bool:
        """Start the step on the thread and return True. Return False if another one runs."""
        if not self.is_free:
            return False
        self._running = step
        self._thread.submit(self._run, step)
        return True

    def _run(self, step: EarlyStep) -> None:
        try:
            # All steps share one stream, because allocated memory belongs to its stream. Each new
            # stream would take as much memory again, in as many calls that wait for the device.
            if self._stream is None:
                device = self._arena.bytes.device
                self._stream = HostStream() if device.type == "cpu" else DeviceStream(device)
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
                step.sampled = self._sampled(step, step.sampling, logits)
        step.seconds = time.monotonic() - began - gate.waited

    @staticmethod
    def _sampled(step: EarlyStep, sampling: SamplingParams, logits: torch.Tensor) -> Sampled:
        position = step.sequence.start + len(step.sequence.token_ids)
        scores = None
        if step.adjuster is not None:
            scores = adjusted(logits, AdjustedRows.of([step.adjuster]).to(logits.device))
        # This reads the token on the host; on a GPU it waits for the stream.
        (sampled,) = sample(logits, [sampling], [position], scores)
        return sampled


class BehindCounts(TypedDict):
    """Counters of forwards behind loads (begun before their load has ended).

    begun: forwards started. busy: forwards not started, because another one ran. joined: forwards
    with a used result. dropped: forwards failed or with a failed load.
    """

    begun: int
    busy: int
    joined: int
    dropped: int


@dataclass(frozen=True)
class PrefillBehind:
    """A forward behind a load (begun before the load has ended).

    kept: checkpoints it stores, each with its slot. stop: number of the request's tokens computed
    after it. is_alone: True if it writes another slot, so the loaded state stays intact.
    """

    step: EarlyStep
    stop: int
    kept: tuple[tuple[PlannedCheckpoint, int], ...]
    is_alone: bool

    @property
    def ended(self) -> bool:
        return self.step.ended

    def wait(self, seconds: float) -> None:
        """Wait until the forward has ended, for at most `seconds`."""
        self.step.wait(seconds)

    @property
    def spoiled(self) -> bool:
        """True if the forward overwrote the loaded state without completing."""
        return not self.is_alone and not self.step.computed


class PrefillsBehind:
    """Forwards of prompt tokens behind a load, computed while the load runs.

    Owns the thread of these forwards (EarlySteps), one at a time, and the resources of the running
    one; the load belongs to the tiers. Thread rule: the engine loop.

    Invariants:
    1. A layer is computed after all its inputs were loaded. The loaded data is verified only at the
       load's end. Until then no result is in the prefix tree, sampled or given to anyone. If the
       load fails, the results are discarded with the allocation.
    2. A forward writes only pages and slots of its allocation, unused by others before its end.
    """

    def __init__(self, cache: HybridPrefixCache, steps: EarlySteps, most_tokens: int) -> None:
        """most_tokens: largest number of tokens in a forward."""
        self._cache = cache
        self._steps = steps
        self._most = most_tokens
        self.counts: BehindCounts = {"begun": 0, "busy": 0, "joined": 0, "dropped": 0}

    def prepare(self) -> None:
        """Prepare the thread of the forwards. May take seconds on a GPU."""
        self._steps.prepare()

    def close(self) -> None:
        """Cancel the running forward and wait for its end. No forward begins afterwards."""
        self._steps.close()

    def begin(
        self, request: Request, allocation: Allocation, barrier: LoadBarrier, *, draws: bool
    ) -> PrefillBehind | None:
        """Begin a forward of the tokens behind the allocation's load, as many as fit. Return None
        if there are none, another forward runs, or the request has pictures. draws: the token after
        the request's last one may be sampled here, if the request samples and is not scored. Else
        the last token is left out. REQUIRES: no data of the load has arrived or is waited for
        yet."""
        assert allocation.load is not None
        start = allocation.load.boundary
        is_sampled = draws and request.sampling.draws and request.scoring is None
        stop = min(request.length if is_sampled else request.length - 1, start + self._most)
        is_sampled = is_sampled and stop == request.length
        # Rows of pictures are written between steps, and not awaited here.
        if stop <= start or request.pictures is not None:
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
                ids_before=self._steps.ids_before(request, start),
            ),
            request.sampling if is_sampled else None,
            self._steps.adjuster(request) if is_sampled else None,
        )
        self._steps.begin(step)
        self.counts["begun"] += 1
        return PrefillBehind(step, stop, kept, len(slots) > 1)

    def _checkpoints(
        self, request: Request, allocation: Allocation, start: int, stop: int
    ) -> tuple[tuple[PlannedCheckpoint, int], ...]:
        """Return the planned checkpoints between `start` and `stop` with a free slot each."""
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
        """Insert the forward's checkpoints into the prefix tree and return the request's progress;
        None if the forward failed. REQUIRES: the load has completed, and the forward has ended."""
        if not behind.step.computed:
            self.counts["dropped"] += 1
            return None
        self.counts["joined"] += 1
        for planned, slot in behind.kept:
            self._cache.insert_midway(allocation, planned.position, slot, planned.kind)
        return Ahead(behind.stop, behind.step.sampled)

    def drop(self) -> None:
        """Count a forward as dropped: its load failed, or its request has ended."""
        self.counts["dropped"] += 1
