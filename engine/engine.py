"""The engine: each step() schedules and launches a forward, then commits the previous one.

Thread rule: one thread calls handle(), step() and take_outbox(). The engine alone owns its cache
and requests. Incoming and outgoing messages are plain values (messages/). One forward is in flight
while the next is planned, so a stop token is noticed one forward late. Two working slots keep the
state to publish at that stop. The next forward is planned late during the one in flight
(planning_wait), so it can include newly arrived requests.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from tasuki.engine import messages as m
from tasuki.engine.cache_queries import CacheQueries
from tasuki.engine.config import EngineConfig, Role
from tasuki.engine.forward_plan import PlanError
from tasuki.engine.intake import Intake, PromptLimits
from tasuki.engine.request import Request
from tasuki.engine.roles.base import Handover, HandoverContext
from tasuki.engine.roles.early_steps import PrefillsBehind
from tasuki.engine.runner.base import Runner, SampledTokens
from tasuki.engine.scheduling.admission import QueueLimit, Seats
from tasuki.engine.scheduling.pictures_elsewhere import Pictures
from tasuki.engine.scheduling.scheduled_forward import ScheduledForward
from tasuki.engine.scheduling.scheduler import Scheduler
from tasuki.engine.speculation.draft_limit import DraftLimit
from tasuki.engine.tiers.lower_tiers import LowerTiers, MakeTiers
from tasuki.engine.updates.staging import Stager
from tasuki.engine.updates.updates import UpdateInbox, Updates
from tasuki.model.grammar.grammar import GrammarError, GrammarsBusy, GrammarsUnavailable
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.model.grammar.trials.client import DRAINS
from tasuki.pycache._cpp_cache import ImpossibleRequest
from tasuki.pycache.prefix_cache import HybridPrefixCache
from tasuki.transfer.chunks.descriptors import UnitSizes
from tasuki.utils.signatures import Clock

from .accounting import EvictionLedger, StepTimes
from .forward_stream import Completion, LaunchedForward, PlanningTime, PlanStream
from .routing import Router

log = logging.getLogger(__name__)

_COPYING_SECONDS = 0.001
"""Seconds a step without other work waits for a copy between tiers. A message may be delayed by as
much."""
_CLOSE_SECONDS = 5.0
_GATHERING_SECONDS = 0.002
"""Longest wait for messages at a time, in seconds. It is short, because the forward in flight may
end earlier than expected."""
_POLLING_SECONDS = 0.002
"""Seconds until an otherwise idle loop checks again for a compiled grammar, a decoded picture or
staged weights."""


@dataclass(frozen=True)
class _Flight:
    """A forward in flight. goes_on: True if another forward was in flight when its step began.
    follows: True if the previous forward had not completed at its launch. late: True if its plan
    had waited for new requests."""

    launched: LaunchedForward
    goes_on: bool
    follows: bool
    late: bool


MakeHandover = Callable[[HandoverContext], Handover]
"""A function from the engine's parts to its role's handling of requests."""


@dataclass(frozen=True)
class Memory:
    """The memory of an engine. tiers: makes the tiers below the arena, if the cache has some.
    behind: computes prompt tokens during loads; owned by the engine from then on."""

    cache: HybridPrefixCache
    tiers: MakeTiers | None = None
    behind: PrefillsBehind | None = None


@dataclass(frozen=True)
class Compute:
    """The parts for computing an engine's forwards. grammars: the compiler shared with the runner.
    drafts: limits the drafts of an answer in a step. pictures: encoder of pictures; None: prompts
    have none. staging, role: as in Updates."""

    runner: Runner
    grammars: GrammarCompiler
    drafts: DraftLimit
    pictures: Pictures | None = None
    staging: Stager | str = "this engine is built over weights that stay"
    role: Role = Role.FUSED


@dataclass(frozen=True)
class EngineSizes:
    """Sizes and limits of an engine. limits: limits of one prompt. max_batch: most requests in one
    forward. wire: byte lengths of the transferred units. weights: their storage format, as in the
    counters. per_token: promised seconds between two tokens of an answer; None: no promise.
    ids_before: number of token ids that the model needs from before a row."""

    limits: PromptLimits
    max_batch: int
    wire: UnitSizes
    weights: str
    per_token: float | None = None
    ids_before: int = 0


class Engine:
    """The step loop's body: it runs forwards for the requests of its role."""

    def __init__(
        self,
        config: EngineConfig,
        memory: Memory,
        compute: Compute,
        sizes: EngineSizes,
        side: MakeHandover,
        clock: Clock = time.monotonic,
    ) -> None:
        """side: makes the role's handling of requests. clock: seconds, for requests' waits."""
        cache, runner, limits = memory.cache, compute.runner, sizes.limits
        grammars, behind = compute.grammars, memory.behind
        self.max_batch = max_batch = sizes.max_batch
        self._cache = cache
        self._outbox: list[m.Outbox] = []
        self._flight: _Flight | None = None
        self._times = StepTimes()
        self._answer_seconds = math.inf
        """Seconds of the last forward without prompts, on the device."""
        self._planning = PlanningTime()
        self._gathered = False
        self._stepped_at = 0.0
        emit = self._outbox.append
        self._ledger = EvictionLedger(cache, self._lessees)
        self._intake = Intake(cache, limits, emit)
        self.watchdog_timeout = config.watchdog_timeout
        self._queue = QueueLimit(config.queue_timeout, clock)
        seats = Seats(max_batch, sizes.per_token)
        self._scheduler = Scheduler(
            *(cache, config, self._admit, self._queue, seats, compute.drafts, max_batch),
            compute.pictures,
        )
        self._pictures = compute.pictures
        self._grammars = grammars
        self._plans = PlanStream(runner, cache, self._scheduler.progress, sizes.ids_before)
        self._tiers = None if memory.tiers is None else memory.tiers(cache, self._plans)
        self._behind = behind
        router = Router(config, cache.arena.layout, sizes.wire)
        self._costs = router.costs
        self._handover = side(
            HandoverContext(
                *(cache, self._plans, self._scheduler, self._intake, router, self._ledger),
                *(limits.working_slots, emit, grammars, clock, self._tiers, behind),
            )
        )
        self.updates = Updates(
            *(cache, self._plans, self._scheduler, self._handover, self._tiers, emit),
            compute.staging,
            compute.role,
        )
        self._landing = Completion(cache, self._plans, self._scheduler, self._handover)
        self._queries = CacheQueries(
            *(cache, self._handover, self._scheduler, self._times, self._intake, emit),
            *(self._tiers, sizes.weights, compute.pictures),
        )

    def prepare(self) -> None:
        """Prepare once, on the stepping thread, before all steps. May take seconds on a GPU."""
        self._plans.prepare()
        self._grammars.prepare()
        if self._behind is not None:
            self._behind.prepare()

    def close(self) -> None:
        """Close the engine once, after the last step. End copies in progress, within seconds, and
        the computations behind them."""
        if self._behind is not None:
            self._behind.close()
        if self._pictures is not None:
            self._pictures.close()
        if self._tiers is not None and not self._tiers.close(_CLOSE_SECONDS):
            log.error("a copy between tiers has not ended within %g s", _CLOSE_SECONDS)

    @property
    def max_request_tokens(self) -> int:
        """Return the most tokens of prompt and answer together allowed by the model and the arena.
        Any thread may call it."""
        return self._intake.max_request_tokens

    @property
    def sees_pictures(self) -> bool:
        """Return True if prompts may have pictures. Any thread."""
        return self._intake.sees_pictures

    @property
    def trials_address(self) -> str:
        """Return the address of the server trying grammars in a separate process. Any thread."""
        return self._grammars.trials.address

    @property
    def computed_behind_loads(self) -> int:
        """Return the number of prompts with a rest computed, and used, while their prefix was
        loaded from a lower tier."""
        return 0 if self._behind is None else self._behind.counts["joined"]

    def handle(self, message: m.Inbox) -> None:
        """Handle a message: cache queries and drains here, all others by the role's hand-over.
        FlushCache also clears stored pictures. Raises ValueError for a message meant for another
        role."""
        if isinstance(message, m.CacheQuery):
            if isinstance(message, m.FlushCache) and self._pictures is not None:
                self._pictures.clear()
            self._queries.handle(message)
        elif isinstance(message, UpdateInbox):
            self.updates.handle(message)
        elif isinstance(message, m.Drain | m.Undrain):
            self._intake.handle(message)
            if isinstance(message, m.Drain):
                self._grammars.give_up(DRAINS)
        else:
            self._handover.handle(message)

    def take_outbox(self) -> list[m.Outbox]:
        """Return all messages emitted since the last call, in order."""
        taken = list(self._outbox)
        self._outbox.clear()
        return taken

    def step(self) -> bool:
        """Launch a forward and commit the previous one. Return False if there was neither. Raises
        PlanError and DeviceLost. No step is allowed after them: engine and runner no longer agree,
        or the runner's device no longer computes."""
        began = time.perf_counter()
        late, self._gathered = self._gathered, False
        self._end_overdue()
        self._retain_grammars()
        if self._tiers is not None:
            self._tiers.advance()
        self._handover.advance()
        self.updates.begin_staged()
        if self._flight is None:
            self.updates.rest()
        if self._pictures is not None:
            self._encode(self._pictures)
        drafts = self._scheduler.drafts_next
        # Drafts follow the newest tokens. The number of accepted drafts of a row is unknown until
        # its forward is complete.
        before, self._flight = self._flight, None
        goes_on = before is not None
        if before is not None and (drafts or before.launched.scheduled.drafted):
            self._complete(before)
            before = None
        work = self._scheduler.schedule(drafts)
        self._ledger.collect()
        self._handover.planned(work.prompts, self._plans.ticks)
        try:
            if work:
                launched = self._plans.launch(work)
                self._flight = _Flight(launched, goes_on, before is not None, late)
                self._planning.launched(work, time.perf_counter() - began)
            else:
                self._plans.fold_now()
        except PlanError:
            # Engine and runner disagree. No request is at fault, so the loop ends.
            raise
        except Exception as error:
            self._plans.check_device()
            self._complete(before)
            self._fail(work, error)
        else:
            self._complete(before)
        evictions = self._ledger.take_unreported()
        if evictions:
            self._outbox.append(m.Evicted(evictions))
        ended = time.perf_counter()
        if work:
            # The time between two steps in a row belongs to the later step.
            self._times.steps.add(ended - (self._stepped_at if goes_on else began))
            if self._scheduler.running.drafting and work.shape.answers:
                self._times.drafted(work.shape.tokens - 1)
        self._stepped_at = ended
        if not self._handover.requests:
            self._intake.at_rest()
        encodes = self._pictures is not None and self._pictures.is_busy
        worked = bool(work) or goes_on or self._handover.waits or encodes
        return worked if self._tiers is None else self._goes_on(self._tiers, worked)

    def _encode(self, pictures: Pictures) -> None:
        """Encode pictures for a while. Reject the requests of a failed one."""
        running = self._scheduler.running
        answering = len(running) > len(running.prompts)
        in_flight = self._flight is not None
        step_seconds = self._answer_seconds if answering else None
        for unseen in pictures.advance(step_seconds, in_flight=in_flight):
            self._handover.reject(unseen.request, unseen.error)

    def _goes_on(self, tiers: LowerTiers, worked: bool) -> bool:
        """Return True if the step did something or copies between tiers are in progress. If only
        copies are in progress, wait for them briefly. worked: True if the step did something."""
        if not self.updates.is_paused:
            tiers.write_down()
        if not worked and tiers.is_busy:
            tiers.wait(_COPYING_SECONDS)
        return worked or tiers.is_busy

    @property
    def planning_wait(self) -> float:
        """Return the seconds left to gather messages before step() plans the next forward. Return
        0.0 (step now) if no forward is in flight, or it has ended."""
        if self._flight is None or self._flight.launched.in_flight.has_ended:
            return 0.0
        return min(self._planning.wait, _GATHERING_SECONDS)

    def gather(self) -> None:
        """Advance hand-overs before the loop waits for messages, as no plan is due yet."""
        self._gathered = True
        self._handover.advance()

    @property
    def idle_seconds(self) -> float | None:
        """Return the seconds until the engine may have work again, after step() returned False and
        if no message comes. None: it has none without a message."""
        decodes = self._pictures is not None and self._pictures.is_decoding
        if self._grammars.compiling or decodes or self.updates.is_busy:
            return _POLLING_SECONDS
        ends = (self._queue.idle_seconds, None if self._tiers is None else self._tiers.idle_seconds)
        return min((each for each in ends if each is not None), default=None)

    def _end_overdue(self) -> None:
        for request in self._queue.passed(self._scheduler.waiting):
            if not self._queue.is_over(request):
                self._scheduler.waiting.missed(request)
                continue
            reason = (
                f"its prompt was not begun within {request.due - request.queued_at:.3g} s "
                "(--queue-timeout, or its own deadline): ask again later, or at another node"
            )
            self._handover.reject(request, m.RequestError(m.ErrorKind.QUEUE_TIMEOUT, reason))

    def _admit(self, request: Request) -> bool:
        """Try to begin a waiting request. Return True if it no longer waits for memory here or for
        a prefill node. Rejects a request impossible to serve. Remembers a refusal: a blocked
        request costs a step nothing until a change might admit it."""
        answer_depends_on = (self._cache.room_version, self._handover.admission_terms)
        if request.refused_at == answer_depends_on or not self._has_grammar(request):
            return False
        if not self._is_looked_up(request):
            return False
        if self._scheduler.parked(request):
            return False
        try:
            admitted = self._handover.admit(request)
        except ImpossibleRequest as error:
            self._handover.reject(request, m.RequestError(m.ErrorKind.TOO_LONG, str(error)))
            return False
        request.refused_at = None if admitted else answer_depends_on
        self.updates.name_begin(request)
        return admitted

    def _has_grammar(self, request: Request) -> bool:
        """Return True if the request needs no grammar, or its grammar is compiled. Rejects a
        request if its grammar cannot be compiled."""
        grammar = request.sampling.grammar
        if grammar is None:
            return True
        try:
            return self._grammars.ready(grammar, request.caller)
        except (GrammarError, GrammarsUnavailable) as error:
            refusal = m.RequestError(m.ErrorKind.INVALID, f"grammar: {error}")
        except GrammarsBusy as error:
            refusal = m.RequestError(m.ErrorKind.OVERLOADED, f"grammar: {error}")
        self._handover.reject(request, refusal)
        return False

    def _retain_grammars(self) -> None:
        """Release grammars not used by any request of this engine."""
        if self._grammars.held:
            self._grammars.retain(
                (request.caller, request.sampling.grammar)
                for request in self._handover.requests
                if request.sampling.grammar is not None
            )

    def _is_looked_up(self, request: Request) -> bool:
        """Return True if the prompt's lookup in a remote store is over, or not needed. Begin the
        lookup at the first call."""
        if self._tiers is None or request.scoring is not None:
            return True
        if request.lookup is None:
            request.lookup = self._tiers.look_up(request.keys, request.salt, request.cursor)
        return request.lookup.is_over

    def _complete(self, flight: _Flight | None) -> None:
        if flight is None:
            return
        forward, in_flight = flight.launched.scheduled, flight.launched.in_flight
        try:
            sampled = in_flight.result()
        except PlanError:
            raise
        except Exception as error:
            self._plans.check_device()
            self._fail(forward, error)
        else:
            busy = in_flight.busy_seconds
            self._scheduler.completed(forward, busy)
            if not forward.prompts:
                self._answer_seconds = busy
            if answers := len(forward.answers):
                self._times.answering.add(answers, busy)
            self._handover.completed(forward.prompts, busy)
            if tokens := forward.prompt_tokens:
                self._costs.forwarded.add(tokens, busy)
            idle = in_flight.idle_seconds if flight.follows else 0.0
            self._planning.completed(forward, busy, idle, late=flight.late)
            if flight.follows:
                self._times.idle.add(idle)
            if flight.goes_on:
                tokens = _tokens_of_answers(forward, sampled)
                seconds = in_flight.idle_seconds + busy
                self._scheduler.completed_after(forward, tokens, seconds, planned=flight.follows)
            self._landing.commit(forward, sampled)

    def _fail(self, forward: ScheduledForward, error: Exception) -> None:
        """Handle a failed forward. A single request ends with the error. With several requests the
        cause is unknown, so each is tried alone if the role allows retries."""
        live = forward.live_sequences(self._scheduler.progress)
        if len(live) > 1 and self._handover.retries:
            log.error("a forward failed; each of its requests is tried alone", exc_info=error)
            self._scheduler.set_apart(live)
            return
        log.error("a forward failed; its requests end with an error", exc_info=error)
        failure = m.RequestError(m.ErrorKind.INTERNAL, f"the forward failed: {error}")
        for item in live:
            self._handover.reject(item.request, failure)

    def _lessees(self) -> dict[int, m.RequestId]:
        """Return the requests with allocations, by the allocation's id."""
        held = {}
        for request in self._handover.requests:
            allocation = getattr(request.state, "allocation", None)
            if allocation is not None:
                held[allocation.id] = request.told_as
        return held


def _tokens_of_answers(forward: ScheduledForward, sampled: SampledTokens) -> int:
    """Return the number of answer tokens produced by the forward."""
    first = len(forward.answers)
    drafted = range(first, first + len(forward.drafted))
    return first + sum(1 + len(sampled.behind.get(row, ())) for row in drafted)
