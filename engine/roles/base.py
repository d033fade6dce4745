"""The step loop's interface to an engine's requests, implemented for each role.

A fused engine answers all of its requests itself (answers.py) and hands nothing over. A prefill
engine hands prompts to decode nodes (prefill_side.py). A decode engine takes prompts from prefill
nodes (decode_side.py). Thread rule: the engine loop's.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypedDict

from tasuki.engine import messages as m
from tasuki.engine.accounting import (
    EvictionLedger,
    PromptLookups,
    breakdown,
    brought_by,
    with_failed,
    with_loaded,
)
from tasuki.engine.intake import Intake
from tasuki.engine.request import Loading, Prefilling, Request, Waiting
from tasuki.engine.roles.early_steps import PrefillBehind, PrefillsBehind
from tasuki.engine.routing import Router
from tasuki.engine.runner.base import EventRecorder, SampledTokens
from tasuki.engine.scheduling.checkpoints import plan_checkpoints
from tasuki.engine.scheduling.scheduled_forward import AnswerRows, ScheduledSequence
from tasuki.engine.scheduling.scheduler import Scheduler
from tasuki.engine.tiers.copy_job import LoadBarrier
from tasuki.engine.tiers.lower_tiers import LoadEnd, LowerTiers
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.model.ops.sampling.prompt_scores import PromptScores
from tasuki.model.ops.sampling.reference import Sampled
from tasuki.pycache._cpp_cache import Allocation
from tasuki.pycache.prefix_cache import HybridPrefixCache


class AllocationTerms(TypedDict):
    """Keyword arguments of PrefixCache.allocate()."""

    salt: bytes
    capacity_tokens: int
    working_slots: int
    cursor: int | None


RequestInbox = (
    m.Submit | m.Abort | m.LeaveToDrainTargets | m.EndLeaving | m.PrefillInbox | m.DecodeInbox
)
"""Messages about requests and their hand-overs."""


@dataclass(frozen=True)
class HandoverContext:
    """The engine's parts used by its role's handling of requests.

    runner: records events of launched work. working_slots: number of working slots for a request.
    emit: sends a message out, in order. clock: returns seconds, for requests' waiting times. tiers:
    the tiers below the arena, if any. behind: computes prompt tokens behind loads, if set. lookups:
    cache lookups of ended requests.
    """

    cache: HybridPrefixCache
    runner: EventRecorder
    scheduler: Scheduler
    intake: Intake
    router: Router
    ledger: EvictionLedger
    working_slots: int
    emit: m.Emit
    grammars: GrammarCompiler
    clock: Callable[[], float] = time.monotonic
    tiers: LowerTiers | None = None
    behind: PrefillsBehind | None = None
    lookups: PromptLookups = field(default_factory=PromptLookups)


class Handover(ABC):
    """One role's handling of its requests.

    A step calls advance(), then admit() for the queue's first request until one is refused, then
    planned(). Later it calls on_tokens(), on_token() or reject() for requests of the ended forward.
    """

    retries: bool = True
    """True if requests of a failed forward may be run again, each alone."""
    draws_behind: bool = True
    """True if an answer's first token may be sampled by a forward behind a load (begun before the
    load's end)."""

    def __init__(self, context: HandoverContext) -> None:
        self._cache = context.cache
        self._scheduler = context.scheduler
        self._intake = context.intake
        self._router = context.router
        self._ledger = context.ledger
        self._working_slots = context.working_slots
        self._emit = context.emit
        self._tiers = context.tiers
        self._behind = context.behind
        self.lookups = context.lookups

    def _allocate(self, request: Request, capacity_tokens: int) -> Allocation | None:
        """Allocate memory for a prefill of all the request's tokens; None if there is no memory
        now. The first allocation sets the request's hit. Raises ImpossibleRequest if it can never
        fit. REQUIRES: the caller performs the allocation's load first, if it has one."""
        terms: AllocationTerms = {
            "salt": request.salt,
            "capacity_tokens": capacity_tokens,
            "working_slots": self._working_slots,
            "cursor": request.cursor,
        }
        if self._tiers is None or request.load_failed is not None:
            allocation = self._cache.allocate(request.all_keys(), **terms)
        else:
            wait = self._tiers.load_wait
            allocation = self._cache.allocate_or_load(request.all_keys(), **terms, load_wait=wait)
        if allocation is not None and allocation.load is None:
            self._note_hit(request, allocation)
        return allocation

    def _note_hit(self, request: Request, allocation: Allocation) -> None:
        """Record the cache hit of the request's first allocation; ignore later ones."""
        if request.hit is None:
            hit = breakdown(allocation.match, self._ledger.lost(allocation.match))
            request.hit = with_failed(hit, request.load_failed)

    def _begin_load(self, request: Request, allocation: Allocation) -> None:
        """Begin the request's load from lower tiers; the request continues in _loaded(). A load
        from the nearest tier alone may have a computation behind it. REQUIRES: there is a load."""
        assert self._tiers is not None and allocation.load is not None
        before = allocation.match.usable_tokens
        brought = brought_by(allocation.load, self._tiers.names)
        state = Loading(allocation, allocation.load.boundary, before, brought)
        request.move(state)
        barrier, behind = LoadBarrier(), None
        # A lower tier brings whole pages, so all layers arrive at the same time.
        is_near = [name for name, _ in brought] == self._tiers.names[:1]
        if self._behind is not None and is_near:
            behind = self._behind.begin(request, allocation, barrier, draws=self.draws_behind)
        on_end = partial(self._load_ended, request, state, behind)
        self._tiers.load(allocation, on_end, None if behind is None else barrier, behind)

    def _load_ended(
        self, request: Request, state: Loading, behind: PrefillBehind | None, end: LoadEnd
    ) -> None:
        """Continue a request after its load. If the load was late or wrong, its tokens and those
        computed behind it are computed again. The request then never loads again."""
        if end is LoadEnd.LANDED:
            is_first = request.hit is None
            self._note_hit(request, state.allocation)
            if is_first and request.hit is not None:
                request.hit = with_loaded(request.hit, state.before, state.brought)
            if behind is not None and self._behind is not None:
                request.ahead = self._behind.take(behind, state.allocation)
            self._loaded(request, state.allocation)
            return
        if behind is not None and self._behind is not None:
            self._behind.drop()
        if end is LoadEnd.FAILED:
            self._cache.release(state.allocation)
        request.load_failed = state.boundary
        request.move(Waiting())
        self._not_loaded(request)
        self._scheduler.requeue(request)

    def _give_up_load(self, state: Loading) -> None:
        """Give up the load of an ended request. Its allocation must not be used afterwards."""
        assert self._tiers is not None
        self._tiers.give_up(state.allocation)

    def _not_loaded(self, request: Request) -> None:
        """Clean up after a failed load, before the request waits again."""
        return

    def _loaded(self, request: Request, allocation: Allocation) -> None:
        """Continue a request after its prefix was loaded from a lower tier. Only roles with loads
        call this."""
        raise AssertionError("a load in an engine that loads nothing")

    def _begin_prefill(self, request: Request, allocation: Allocation) -> Prefilling:
        """Return the request's new state for its prefill, with checkpoints; none if scored."""
        ahead, request.ahead = request.ahead, None
        slots = tuple(allocation.working_slots)
        computed, slot = allocation.cached_tokens, 0
        if ahead is None:
            request.started = time.monotonic(), computed
            request.encodes = self._encodes(request, computed)
        else:
            # The elapsed time would not be the time of a prefill here.
            request.started = None
            computed, slot = ahead.tokens, len(slots) - 1
        planned = []
        if request.scoring is None:
            planned = plan_checkpoints(
                request.length,
                computed,
                allocation.match,
                request.marks,
                request.branch_points,
                request.message_end,
                () if request.pictures is None else request.pictures.runs,
            )
        progress = self._scheduler.progress.begin(slots, computed, slot)
        return Prefilling(allocation, progress, checkpoints=planned)

    def _encodes(self, request: Request, start: int) -> float:
        """Return the work of the prompt's pictures without rows from token `start` on, in
        tokens."""
        pictures = self._scheduler.pictures
        if request.pictures is None or pictures is None:
            return 0.0
        return pictures.work(request, start)

    def _learn_prefill_cost(self, request: Request) -> None:
        """Record the measured time of the prompt computed just now, for routing, unless a part was
        computed during its load."""
        if request.started is not None:
            at, cached = request.started
            tokens = len(request.prompt) - cached + round(request.encodes)
            self._router.costs.here.add(tokens, time.monotonic() - at)

    @property
    @abstractmethod
    def requests(self) -> Collection[Request]:
        """All requests not yet over."""

    @property
    def admission_terms(self) -> Hashable:
        """Return all inputs of admit() except the cache's free memory. A refusal by admit() holds
        until one of them changes."""
        return None

    @abstractmethod
    def handle(self, message: RequestInbox) -> None:
        """Handle a message about requests. Raises ValueError for a message of another role."""

    def leave_nothing(self, message: m.LeaveToDrainTargets | m.EndLeaving) -> None:
        """Answer LeaveToDrainTargets with no states handed on, in a role without prefill nodes.
        Ignore EndLeaving."""
        if isinstance(message, m.LeaveToDrainTargets):
            self._emit(m.LeftToDrainTargets(message.query_id))

    @abstractmethod
    def advance(self) -> None:
        """Grant as much memory as possible to waiting transfers. Called before planning."""

    @abstractmethod
    def admit(self, request: Request) -> bool:
        """Begin a waiting request and return True, or leave it unchanged and return False. Raises
        ImpossibleRequest if it can never fit."""

    @abstractmethod
    def planned(self, prompts: Sequence[ScheduledSequence], first_tick: int) -> None:
        """Record a forward about to be launched with these prompt parts. first_tick: the step
        counter's value after all work launched before."""

    @abstractmethod
    def completed(self, prompts: Sequence[ScheduledSequence], seconds: float) -> None:
        """Record the end of a forward with these prompt parts. seconds: of this forward alone."""

    def on_tokens(self, answers: AnswerRows, sampled: SampledTokens) -> None:
        """Handle one sampled token for each of these answers, row by row. All requests still run,
        with finite logits. Only a role with answers has such rows."""
        raise AssertionError("an answer's row in an engine that answers nothing")

    @abstractmethod
    def on_token(self, request: Request, sampled: Sampled) -> None:
        """Handle the request's next token, sampled by a forward."""

    def until_end(self, request: Request, tokens: Sequence[Sampled]) -> int:
        """Return the number of these consecutive tokens in the request's answer. Only a role with
        answers calls this."""
        raise AssertionError("an answer's row in an engine that answers nothing")

    def on_scores(self, request: Request, row: int, scores: PromptScores) -> None:
        """Handle the scores of prompt tokens after position `row`. Only for roles with answers."""
        raise AssertionError("a scored prompt in an engine that answers nothing")

    def on_prompt_end(self, request: Request) -> None:
        """Handle the computed prompt of a request without sampling. Only for roles with answers."""
        raise AssertionError("a prompt without an answer in an engine that answers nothing")

    @abstractmethod
    def reject(self, request: Request, error: m.RequestError) -> None:
        """End a request without an answer."""

    @property
    def waits(self) -> bool:
        """True if a step is needed although no request runs."""
        return False

    @property
    def early_counters(self) -> dict[str, int]:
        """The values of EarlyCounters, if this role begins decode steps before their prompt has
        arrived; else empty."""
        return {}


def misdirected(message: RequestInbox) -> ValueError:
    """Return an error for a message sent to an engine of the wrong role."""
    return ValueError(f"{type(message).__name__} reached an engine whose role does not take it")
