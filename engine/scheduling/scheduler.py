"""Decides what the next forward computes: admits, cuts chunks, grows allocations, retracts.

Owns the queue and the running set; asks the cache for allocations; knows nothing of tensors or
messages. Admission is first come, first served and transactional: a request gets all it needs or
waits."""

from collections import deque
from collections.abc import Callable, Sequence

from tasuki.engine.config import EngineConfig
from tasuki.engine.request import (
    Active,
    Decoding,
    PlannedCheckpoint,
    Prefilling,
    Request,
    Retracted,
    Waiting,
)
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.pycache.prefix_cache import HybridPrefixCache

from .queue_limit import QueueLimit
from .scheduled_sequence import ScheduledSequence
from .turn_end import keep_state

Admit = Callable[[Request], bool]


class Scheduler:
    """`admit(request)` moves a waiting request on and says whether it could (Engine._admit)."""

    def __init__(
        self,
        cache: HybridPrefixCache,
        config: EngineConfig,
        admit: Admit,
        limit: QueueLimit,
    ) -> None:
        """limit: notes each request that begins to wait."""
        self._cache = cache
        self._config = config
        self._admit = admit
        self._limit = limit
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def enqueue(self, request: Request) -> None:
        self._limit.entered(request)
        self.waiting.append(request)

    def requeue(self, request: Request) -> None:
        """Back to the head: it has waited its turn already."""
        self._limit.entered(request)
        self.waiting.appendleft(request)

    def start(self, request: Request) -> None:
        """Run a request that got its allocation by a hand-over. REQUIRES: it is Prefilling or
        Decoding."""
        self.running.append(request)

    def drop(self, request: Request) -> None:
        """Forget a request wherever it stands; its allocation is the caller's business."""
        if request in self.running:
            self.running.remove(request)
        if request in self.waiting:
            self.waiting.remove(request)

    def set_apart(self, failed: Sequence[ScheduledSequence]) -> None:
        """Start the requests of a failed forward over, each in forwards of its own until one has
        succeeded. They keep what had landed before it; what it may have half written is lost, and
        with it what a later forward in flight overwrites. REQUIRES: all are live."""
        for item in reversed(failed):
            state = item.active
            newest = state.progress.num_scheduled == item.stop
            if newest and item.write_slot != state.state_slot:
                keep_state(self._cache, item.request, state)
            self._cache.release(state.allocation)
            item.request.suspect = True
            self._give_way(item.request)

    def schedule(self) -> list[ScheduledSequence]:
        """The next forward; empty when nothing can run.

        The one before may be in flight: what it computes counts as computed, the token it draws as
        drawn. That it was the last token shows only later; then one forward was for nothing."""
        while self.waiting and len(self.running) < self._config.max_batch:
            if not self._admit(self.waiting[0]):
                break
            request = self.waiting.popleft()
            if isinstance(request.state, Prefilling):
                self.running.append(request)
        work = [
            self._scheduled(request, state, request.expected_length, 1)
            for request, state in self._growable()
        ]
        budget = self._config.prefill_chunk_tokens
        for request in self._together():
            if budget <= 0 or len(work) >= self._config.max_batch:
                break
            state = request.state
            if isinstance(state, Prefilling) and state.progress.num_scheduled < request.length:
                chunk = self._chunk(request, state, budget)
                if chunk is None:
                    break
                budget -= chunk.stop - chunk.start
                work.append(chunk)
        return work

    def _together(self) -> list[Request]:
        """Running requests that may share the next forward."""
        suspect = next((request for request in self.running if request.suspect), None)
        return self.running if suspect is None else [suspect]

    def _growable(self) -> list[tuple[Request, Active]]:
        """Answering requests that have room for one more token; others are retracted to make it."""
        for request, state in self._answering():
            if request.state is state:
                self._grow(request, state)
        return self._answering()[: self._config.max_batch]

    def _answering(self) -> list[tuple[Request, Active]]:
        """Requests of which one token, drawn or being drawn, is to be forwarded."""
        return [
            (request, state)
            for request in self._together()
            if isinstance(state := request.state, Active)
            and (isinstance(state, Decoding) or state.progress.sampling_in_flight)
            and state.answers_here
            and state.progress.num_scheduled < min(request.expected_length, request.final_length)
        ]

    def _grow(self, request: Request, state: Active) -> None:
        if state.allocation.capacity_tokens >= request.expected_length:
            return
        while not self._cache.extend(state.allocation, request.next_capacity):
            victim = self.running[-1]
            self._retract(victim)
            if victim is request:
                return

    def _retract(self, request: Request) -> None:
        """The youngest gives way, so that the oldest always progresses; what it computed stays
        cached."""
        state = request.state
        assert isinstance(state, Active)
        keep_state(self._cache, request, state)
        self._cache.release(state.allocation)
        self._give_way(request)

    def _give_way(self, request: Request) -> None:
        self.running.remove(request)
        request.move(Retracted())
        request.move(Waiting())
        self.requeue(request)

    def _chunk(self, request: Request, state: Prefilling, budget: int) -> ScheduledSequence | None:
        """As much as the budget allows; inside a prompt a chunk ends on a page, so pages leave
        whole."""
        start = state.progress.num_scheduled
        stop = min(request.length, start + budget)
        if stop < request.length:
            stop = stop // PAGE_TOKENS * PAGE_TOKENS
            if stop <= start:
                return None
        kept = []
        for planned in state.checkpoints:
            if start < planned.position <= stop:
                slot = self._cache.take_checkpoint_slot(state.allocation)
                if slot is not None:
                    kept.append((planned, slot))
        return self._scheduled(request, state, stop, int(stop == request.length), tuple(kept))

    @staticmethod
    def _scheduled(
        request: Request,
        state: Active,
        stop: int,
        num_sampled: int,
        checkpoints: tuple[tuple[PlannedCheckpoint, int], ...] = (),
    ) -> ScheduledSequence:
        progress, written = state.progress, state.next_index
        scheduled = ScheduledSequence(
            request,
            state,
            progress.num_scheduled,
            stop,
            progress.scheduled_slot,
            written,
            num_sampled,
            checkpoints,
        )
        progress.schedule(stop, written, num_sampled)
        return scheduled
