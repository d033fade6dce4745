"""Decides what the next forward computes: admits, cuts chunks, grows allocations, retracts.

Owns the queue and the running set; asks the cache for allocations; has no part in tensors or
messages. Admission is transactional: a request gets all it needs or waits. Callers who share the
engine are admitted in turn, the one with the least of it first; of one caller the most urgent
request first, of these the one whose first token is due first (queues.py). A caller with more than
an equal part gives way to one with less.

ChunkLimit owns the measured times of forwards, from which the tokens of a prefill chunk follow;
share_chunk() gives them to prompts. Thread rule: the engine loop's.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from types import MappingProxyType

import numpy as np

from tasuki.engine.accounting import LineFit
from tasuki.engine.config import EngineConfig
from tasuki.engine.progress import Lanes, ProgressTable
from tasuki.engine.request import (
    Active,
    AwaitingGrant,
    Decoding,
    Loading,
    Prefilling,
    Request,
    Retracted,
    Waiting,
)
from tasuki.engine.speculation.draft_limit import DraftLimit
from tasuki.engine.speculation.drafting import Drafting
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.pycache.prefix_cache import HybridPrefixCache

from .admission import QueueLimit, Seats
from .checkpoints import keep_state
from .queues import CallerShares, RunningRequests, WaitingQueue
from .scheduled_forward import ScheduledForward, ScheduledSequence
from .shared_prompts import follow, leader_of, load_leader_of, pays

_GROWTH = 2.0
"""The next forward has at most so many times the tokens of one that took little time."""


class ChunkLimit:
    """How many prompt tokens a forward may have beside answers, so that no answer waits too long.

    Owns what the last forwards took. Thread rule: the engine loop's. Invariant: at least a page, at
    most a chunk; without a limit always a chunk.
    """

    def __init__(self, chunk: int, most_seconds: float | None) -> None:
        """chunk: prompt tokens of a forward. most_seconds: of a forward with answers; None: as long
        as it takes."""
        self._chunk = chunk
        self._most_seconds = most_seconds
        self._beside_answers = chunk if most_seconds is None else PAGE_TOKENS

    def tokens(self, *, beside_answers: bool) -> int:
        """That the next forward may have of prompts."""
        return self._beside_answers if beside_answers else self._chunk

    def landed(self, forward: ScheduledForward, seconds: float) -> None:
        """It took so long. Those without answers or without prompts show nothing."""
        if self._most_seconds is None:
            return
        prompts = sum(not item.decodes for item in forward.prompts)
        if not prompts or prompts == len(forward):
            return
        tokens = forward.prompt_tokens
        fitting = tokens * min(_GROWTH, self._most_seconds / max(seconds, 1e-9))
        # A forward with few tokens shows only that so many fit.
        if fitting < self._beside_answers or tokens >= self._beside_answers:
            pages = max(1, int(fitting) // PAGE_TOKENS)
            self._beside_answers = min(self._chunk, pages * PAGE_TOKENS)


_OLDEST_EVERY = 4


@dataclass(frozen=True)
class Demand:
    """Who gets how much of a forward's prompt tokens. Pure.

    Each caller has an equal part of the chunk, and what it could not use of it while it wanted more
    is owed to it: deficit round robin (Shreedhar and Varghese, 1995). Of a part, the prompt with
    the least left to compute comes first, at most three quarters of the chunk to one prompt: a long
    prompt delays a short one by a few chunks, not by its length. Before these come prompts that
    would miss the time of their first token if they waited for all others, and can still meet it,
    the first due first. Every fourth chunk begins with the oldest prompt instead, so that short
    ones that keep coming never stop a long one. What somebody cannot use, others get on their own
    account.

    Tokens [start, length) of a prompt are still to be forwarded. sought: somebody needs them until
    there; at most length. seconds_left: until its first token is due; infinite where nobody said
    when.
    """

    caller: str
    start: int
    length: int
    sought: int
    seconds_left: float = math.inf

    @property
    def left(self) -> int:
        return self.sought - self.start


Owed = Mapping[str, float]
"""Tokens, by caller; below 0 what a caller has had in advance."""


def share_chunk(
    demands: Sequence[Demand],
    budget: int,
    turn: int,
    speed: float = math.inf,
    owed: Owed = MappingProxyType({}),
) -> list[int]:
    """Where each demand's next forward stops, its start where it gets nothing: on a page inside of
    a prompt. demands: the oldest first. budget: tokens in all. turn: number of the chunk. speed:
    prompt tokens a second; infinite where that is not known."""
    stops = [demand.start for demand in demands]
    if not demands:
        return stops
    order = _in_order(demands, speed)
    if turn % _OLDEST_EVERY == 0:
        # The oldest has index 0; the others stay in their order.
        order.sort(key=bool)
    left = budget

    def take(index: int, most: int) -> int:
        """Tokens that it gets more, so that it has no more than `most` in all."""
        nonlocal left
        demand, before = demands[index], stops[index]
        stop = min(demand.length, before + left, demand.start + most)
        if stop < demand.length:
            stop = stop // PAGE_TOKENS * PAGE_TOKENS
        stops[index] = max(before, stop)
        left -= stops[index] - before
        return stops[index] - before

    callers = _turned(sorted({demand.caller for demand in demands}), turn)
    # Who is owed most; of those who are owed as much, another one each time.
    callers.sort(key=lambda caller: owed.get(caller, 0.0), reverse=True)
    of = {caller: [i for i in order if demands[i].caller == caller] for caller in callers}
    most = max(PAGE_TOKENS, budget * 3 // 4)
    for caller in callers:
        of_caller = int(budget / len(callers) + owed.get(caller, 0.0))
        for index in of[caller]:
            of_caller -= take(index, min(most, of_caller))
    for limit in (most, budget):
        for caller in callers:
            for index in of[caller]:
                take(index, limit)
    return stops


def owed_after(
    demands: Sequence[Demand], stops: Sequence[int], budget: int, owed: Owed
) -> dict[str, float]:
    """What callers are owed once they had this. Nothing is saved for who wants no more, and never
    more than a chunk."""
    left = dict.fromkeys((demand.caller for demand in demands), 0)
    got = dict(left)
    for demand, stop in zip(demands, stops, strict=True):
        got[demand.caller] += stop - demand.start
        left[demand.caller] += demand.length - stop
    # Of what was given, so that what no page fits into is owed to nobody.
    part = sum(got.values()) / max(1, len(got))
    return {
        caller: max(-budget, min(budget, owed.get(caller, 0.0) + part - tokens))
        for caller, tokens in got.items()
        if left[caller]
    }


def _turned(callers: list[str], turn: int) -> list[str]:
    first = turn % len(callers)
    return callers[first:] + callers[:first]


def _in_order(demands: Sequence[Demand], speed: float) -> list[int]:
    last = sum(demand.left for demand in demands) / speed

    def rank(index: int) -> tuple[float, int]:
        demand = demands[index]
        hurries = demand.left / speed <= demand.seconds_left < last
        return demand.seconds_left if hurries else math.inf, demand.left

    return sorted(range(len(demands)), key=rank)


_LEAST_SECONDS = 1e-9

Admit = Callable[[Request], bool]


@dataclass(frozen=True)
class _Proposed:
    """Drafts of a request's next forward; where the draft layer is to guess them before that, or
    the runner has them, they stand for nothing here."""

    request: Request
    state: Decoding
    drafting: Drafting
    drafts: tuple[int, ...]
    to_guess: bool
    on_lane: bool


class Scheduler:
    """`admit(request)` moves a waiting request on and says whether it could (Engine._admit)."""

    def __init__(
        self,
        cache: HybridPrefixCache,
        config: EngineConfig,
        admit: Admit,
        limit: QueueLimit,
        seats: Seats,
        drafts: DraftLimit,
        max_batch: int,
    ) -> None:
        """limit: notes each request that begins to wait. seats: of requests that run, and learns
        from the forwards. drafts: of answers that may be drafted. max_batch: requests in one
        forward, which the config may leave open."""
        self._cache = cache
        self._admit = admit
        self._limit = limit
        self.max_batch = max_batch
        self.seats = seats
        self._drafts = drafts
        self._chunk = ChunkLimit(config.prefill_chunk_tokens, config.max_itl_seconds)
        self._chunk_seconds = LineFit()
        """By prompt tokens of a forward."""
        self._shares = CallerShares(cache, seats)
        self._computing: list[Request] = []
        """Admitted, their prompts not computed yet; maybe some that are over."""
        self._chunks = count()
        self._owed: dict[str, float] = {}
        self._first_row = 0
        self._first_watched = 0
        self.retractions = 0
        """Times that a request's memory was taken back."""
        self.waiting = WaitingQueue()
        self.progress = ProgressTable(cache.arena.slabs)
        self.running = RunningRequests(self.progress)

    def enqueue(self, request: Request) -> None:
        self._limit.entered(request)
        self.waiting.add(request)

    def requeue(self, request: Request) -> None:
        """Before those that have not waited: it has waited its turn already."""
        self._limit.entered(request)
        self.waiting.add(request, returned=True)

    def start(self, request: Request) -> None:
        """Run a request that got its allocation by a hand-over. REQUIRES: it is Prefilling or
        Decoding."""
        self.running.add(request)

    def drop(self, request: Request) -> None:
        """Forget a request wherever it stands; its allocation is the caller's business."""
        self.running.discard(request)
        self.waiting.discard(request)

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

    def due_seconds(self, request: Request) -> float | None:
        """Until its first token is due; None where nobody said when, or it is too late."""
        left = self._limit.seconds_left(request)
        return left if 0 < left < math.inf else None

    def landed(self, forward: ScheduledForward, seconds: float) -> None:
        """It took so long."""
        self._chunk.landed(forward, seconds)
        if tokens := forward.prompt_tokens:
            self._chunk_seconds.add(tokens, seconds)
        elif forward:
            self.seats.steps.landed(len(forward), seconds)

    def landed_after(
        self, forward: ScheduledForward, tokens: int, seconds: float, *, planned: bool
    ) -> None:
        """It ended so long after the one right before it, and gave so many tokens. planned: while
        that one ran."""
        if forward and not forward.prompts:
            self._drafts.landed(forward.shape, tokens, seconds, planned=planned)

    def schedule(self, drafts: int) -> ScheduledForward:
        """The next forward, with so many drafts of an answer at most; empty when nothing can run.
        REQUIRES: where there may be some, or the one before had some, none is in flight.

        Else the one before may be: what it computes counts as computed, the token it draws as
        drawn. That it was the last token shows only later; then one forward was for nothing."""
        self._admit_waiting()
        lanes = self._growable()
        if drafts:
            drafted = self._draft(lanes, drafts)
        else:
            drafted = []
            self._watch()
        if drafted:
            taken = {item.lane for item in drafted}
            lanes = lanes[[lane not in taken for lane in lanes.tolist()]]
        answers = self.running.schedule_next(lanes)
        rows = len(answers) + len(drafted)
        budget = self._chunk.tokens(beside_answers=bool(rows))
        return ScheduledForward(answers, self._chunks_of(budget, rows), drafted)

    @property
    def drafts_next(self) -> int:
        """Drafts of an answer that the next forward may have. They follow tokens that are there, so
        that the forward before is to land first where there may be some."""
        drafting = self.running.drafting.values()
        return self._drafts.next(len(self.running), drafting) if drafting else 0

    def _draft(self, lanes: Lanes, most: int) -> list[ScheduledSequence]:
        """Rows with drafts, or behind which some are to be guessed, of requests that have the next
        forward's rows."""
        proposed = self._proposed(lanes, most)
        counts = [(one.drafting, len(one.drafts)) for one in proposed]
        most = self._drafts.of_step(len(lanes), counts)
        found = []
        for one in proposed if most else ():
            drafts, guesses = one.drafts[:most], min(one.drafting.guesses, most)
            if drafts or guesses:
                self._make_room(one.request, one.state, len(drafts) + 1 + guesses)
                found.append(self._drafted(one, drafts, most))
        return found

    def _proposed(self, lanes: Lanes, most: int) -> list[_Proposed]:
        turns = set(lanes.tolist())
        found = []
        for request, drafting in self.running.drafting.items():
            state = request.state
            if isinstance(state, Decoding) and state.progress.lane in turns:
                left = min(most, request.final_length - request.length)
                drafts = drafting.propose(request.output, left)
                on_lane = 0 if drafts else drafting.drafts_on_lane(request.output, left)
                asked = drafts or on_lane
                first = 0 if asked else drafting.first_guesses(request.output, left)
                drafts = drafts or (0,) * (on_lane + first)
                found.append(_Proposed(request, state, drafting, drafts, first > 0, on_lane > 0))
        return found

    def _watch(self) -> None:
        """Some of the drafters, the next ones each time."""
        drafting = list(self.running.drafting.items()) if self._drafts.watched else []
        count = min(self._drafts.watched, len(drafting))
        for place in range(self._first_watched, self._first_watched + count):
            request, one = drafting[place % len(drafting)]
            one.watch(request.output)
        self._first_watched += count

    def _make_room(self, request: Request, state: Decoding, tokens: int) -> None:
        """For so many more, if there is some that nobody has, and never past the end."""
        wanted = min(request.length + tokens, request.final_length + 1)
        if wanted > state.allocation.capacity_tokens:
            self._cache.extend(state.allocation, wanted)
            self.running.grown(request, state)

    def _drafted(
        self, proposed: _Proposed, drafts: tuple[int, ...], most: int
    ) -> ScheduledSequence:
        """With as many of these drafts, and of the guesses, `most` at most, as its pages have room
        for."""
        request, state, length = proposed.request, proposed.state, proposed.request.length
        drafts = drafts[: state.allocation.capacity_tokens - length]
        start, read, written = length - 1, state.progress.slot, state.next_index
        stop, num_sampled = length + len(drafts), 1 + len(drafts)
        state.progress.schedule(stop, written, num_sampled)
        return ScheduledSequence(
            request,
            state,
            start,
            stop,
            read,
            written,
            num_sampled,
            drafts=drafts,
            first_guesses=len(drafts) if proposed.to_guess else 0,
            drafts_on_lane=proposed.on_lane and len(drafts) > 0,
            guesses=min(most, _guesses(request, state, stop)),
        )

    def _admit_waiting(self) -> None:
        """Whoever holds least of the engine first, until nobody's requests find room."""
        self._computing = [request for request in self._computing if _computes(request)]
        self.waiting.unpark()
        blocked: set[str] = set()
        seats = self.seats.count
        while len(self.running) + self._loading() < seats:
            callers = [caller for caller in self.waiting.lines if caller not in blocked]
            if not callers:
                break
            caller = self._shares.least(callers, self.running)
            if not self._admit_of(caller):
                blocked.add(caller)
        victim = self._shares.victim_for(self.waiting, self.running)
        if victim is not None:
            self._retract(victim)

    def _admit_of(self, caller: str) -> bool:
        """Whether a request of the line left it."""
        for *_, request in self.waiting.lines[caller][: self.waiting.tried(caller)]:
            if self._admit(request):
                self.waiting.begun(request)
                self._computing.append(request)
                if isinstance(request.state, Prefilling):
                    self.running.add(request)
                return True
            if not self.waiting.stands(request):
                return True
        return False

    def _loading(self) -> int:
        """Requests that run once what they load has landed."""
        return sum(isinstance(request.state, Loading) for request in self._computing)

    def parked(self, request: Request) -> bool:
        """Whether the request, which waits, goes on to wait for what another one computes, or
        loads."""
        if request.output or request.gateway_room is not None:
            return False
        if self._follows_load(request):
            return True
        leader = leader_of(request, self._computing)
        if leader is None:
            return False
        match = self._cache.match(request.prompt, request.salt, request.cursor)
        if not pays(leader, match.usable_tokens):
            return False
        follow(leader)
        self.waiting.park(request, leader)
        return True

    def _follows_load(self, request: Request) -> bool:
        if request.load_failed is not None or not self._loading():
            return False
        match = self._cache.match(request.prompt, request.salt, request.cursor)
        leader = load_leader_of(request, self._computing, match.kv_tokens)
        if leader is None:
            return False
        self.waiting.park(request, leader)
        return True

    def _chunks_of(self, budget: int, rows: int) -> list[ScheduledSequence]:
        """What of prompts the forward computes, beside so many rows."""
        unfinished = self.running.unfinished_prompts()[: max(0, self.max_batch - rows)]
        if not unfinished:
            return []
        prompts = [(request, _prefilling(request)) for request in unfinished]
        demands = [
            Demand(
                request.caller,
                state.progress.num_scheduled,
                request.length,
                self.waiting.sought(request, state.progress.num_scheduled, request.length),
                self._limit.seconds_left(request),
            )
            for request, state in prompts
        ]
        line = self._chunk_seconds.line()
        speed = math.inf if line is None else budget / max(line.seconds(budget), _LEAST_SECONDS)
        stops = share_chunk(demands, budget, next(self._chunks), speed, self._owed)
        self._owed = owed_after(demands, stops, budget, self._owed)
        return [
            self._cut(request, state, stop)
            for (request, state), stop in zip(prompts, stops, strict=True)
            if stop > state.progress.num_scheduled
        ]

    def _growable(self) -> Lanes:
        """Of answering requests that have room for one more token; others are retracted to make
        it."""
        lanes = self.running.answering()
        # One is there, or in flight, that no forward has yet; the next one comes behind it.
        needed = self.progress.num_scheduled[lanes] + 1
        short = lanes[self.running.capacities[lanes] < needed]
        if len(short):
            for request, state in [(request, request.state) for request in self.running.of(short)]:
                # Who gave way for one before it has no allocation to grow.
                if request.state is state:
                    assert isinstance(state, Active)
                    self._grow(request, state)
            lanes = self.running.answering()
        return self._in_turns(lanes)

    def _in_turns(self, answering: Lanes) -> Lanes:
        """As many as the next forward has rows for, but one for a prompt that waits for it. Where
        hand-overs brought more, they take turns, so that whatever was begun goes on."""
        if len(answering) < self.max_batch:
            return answering
        rows = self.max_batch - bool(self.running.unfinished_prompts())
        if len(answering) <= rows:
            return answering
        first = self._first_row % len(answering)
        self._first_row = first + rows
        return np.concatenate([answering[first:], answering[:first]])[:rows]

    def _grow(self, request: Request, state: Active) -> None:
        while not self._cache.extend(state.allocation, request.next_capacity):
            victim = self._shares.victim(self.running)
            self._retract(victim)
            if victim is request:
                return
        self.running.grown(request, state)

    def _retract(self, request: Request) -> None:
        """What it computed stays cached."""
        state = request.state
        assert isinstance(state, Active)
        keep_state(self._cache, request, state)
        self._cache.release(state.allocation)
        self.retractions += 1
        self._give_way(request)

    def _give_way(self, request: Request) -> None:
        self.running.discard(request)
        request.move(Retracted())
        request.move(Waiting())
        self.requeue(request)

    def _cut(self, request: Request, state: Prefilling, stop: int) -> ScheduledSequence:
        """The tokens until there, with slots for the checkpoints among them."""
        start = state.progress.num_scheduled
        kept = []
        for planned in state.checkpoints:
            if start < planned.position <= stop:
                slot = self._cache.take_checkpoint_slot(state.allocation)
                if slot is not None:
                    kept.append((planned, slot))
        progress, read, written = state.progress, state.progress.scheduled_slot, state.next_index
        is_whole = stop == request.length
        num_sampled = int(is_whole and request.sampling.draws)
        progress.schedule(stop, written, num_sampled)
        if is_whole:
            self.running.prompt_scheduled(request, state)
        guesses = 0
        if num_sampled and state.answers_here:
            guesses = _guesses(request, state, stop)
        return ScheduledSequence(
            request, state, start, stop, read, written, num_sampled, tuple(kept), guesses=guesses
        )


def _guesses(request: Request, state: Active, stop: int) -> int:
    """Tokens that its draft layer may propose behind those before `stop` and the one drawn there,
    as far as its pages go."""
    if request.drafting is None:
        return 0
    return max(0, min(request.drafting.guesses, state.allocation.capacity_tokens - stop - 1))


def _computes(request: Request) -> bool:
    return isinstance(request.state, AwaitingGrant | Loading | Prefilling)


def _prefilling(request: Request) -> Prefilling:
    assert isinstance(request.state, Prefilling)
    return request.state
