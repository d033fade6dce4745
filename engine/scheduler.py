"""Decides what the next forward computes: admits, cuts chunks, grows leases, retracts.

Owns the queue and the running set; asks the cache for leases; knows nothing of tensors or messages.
Admission is first come, first served and transactional: a request gets all it needs or waits.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ..pycache.layout import PAGE_TOKENS
from ..pycache.prefix_cache import HybridPrefixCache
from .checkpoints import PlannedCheckpoint
from .config import EngineConfig
from .request import Active, Decoding, Prefilling, Request, Retracted, Waiting
from .turns import keep_state

Admit = Callable[[Request], bool]


@dataclass(frozen=True)
class Work:
    """Tokens [start, stop) of a running request; checkpoints that fall into it, with their
    slots."""

    request: Request
    active: Active
    start: int
    stop: int
    checkpoints: tuple[tuple[PlannedCheckpoint, int], ...]

    @property
    def samples(self) -> bool:
        """Whether the forward reaches the last known token, so that the next one can be drawn."""
        return self.stop == self.request.length


class Scheduler:
    """`admit(request)` moves a waiting request on and says whether it could; see admission.py."""

    def __init__(self, cache: HybridPrefixCache, config: EngineConfig, admit: Admit) -> None:
        self._cache = cache
        self._config = config
        self._admit = admit
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def enqueue(self, request: Request) -> None:
        self.waiting.append(request)

    def requeue(self, request: Request) -> None:
        """Back to the head: it has waited its turn already."""
        self.waiting.appendleft(request)

    def start(self, request: Request) -> None:
        """Run a request that got its lease by a hand-over. REQUIRES: it is Prefilling or
        Decoding."""
        self.running.append(request)

    def drop(self, request: Request) -> None:
        """Forget a request wherever it stands; its lease is the caller's business."""
        if request in self.running:
            self.running.remove(request)
        if request in self.waiting:
            self.waiting.remove(request)

    def schedule(self) -> list[Work]:
        """The next forward; empty when nothing can run."""
        while self.waiting and len(self.running) < self._config.max_batch:
            if not self._admit(self.waiting[0]):
                break
            request = self.waiting.popleft()
            if isinstance(request.state, Prefilling):
                self.running.append(request)
        work = [self._decode(request) for request in self._growable()]
        budget = self._config.prefill_chunk_tokens
        for request in self.running:
            if budget <= 0 or len(work) >= self._config.max_batch:
                break
            if isinstance(request.state, Prefilling):
                chunk = self._chunk(request, request.state, budget)
                if chunk is None:
                    break
                budget -= chunk.stop - chunk.start
                work.append(chunk)
        return work

    def _growable(self) -> list[Request]:
        """Decoding requests that have room for one more token; others are retracted to make it."""
        for request in list(self.running):
            if isinstance(request.state, Decoding):
                self._grow(request, request.state)
        decoding = [r for r in self.running if isinstance(r.state, Decoding)]
        return decoding[: self._config.max_batch]

    def _grow(self, request: Request, state: Decoding) -> None:
        if state.lease.capacity_tokens >= request.length:
            return
        while not self._cache.extend(state.lease, request.next_capacity):
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
        self._cache.release(state.lease)
        self.running.remove(request)
        request.move(Retracted())
        request.move(Waiting())
        self.requeue(request)

    @staticmethod
    def _decode(request: Request) -> Work:
        state = request.state
        assert isinstance(state, Decoding)
        return Work(request, state, state.computed, request.length, ())

    def _chunk(self, request: Request, state: Prefilling, budget: int) -> Work | None:
        """As much as the budget allows; inside a prompt a chunk ends on a page, so pages leave
        whole."""
        start, stop = state.computed, min(request.length, state.computed + budget)
        if stop < request.length:
            stop = stop // PAGE_TOKENS * PAGE_TOKENS
            if stop <= start:
                return None
        kept = []
        for planned in state.checkpoints:
            if start < planned.position <= stop:
                slot = self._cache.take_checkpoint_slot(state.lease)
                if slot is not None:
                    kept.append((planned, slot))
        return Work(request, state, start, stop, tuple(kept))
