"""The scheduler of forwards: admits requests, cuts chunks, grows allocations, retracts.

Owns the queue and the running set; asks the cache for allocations; handles no tensors and no
messages. Admission is transactional: a request gets all it needs or waits. Callers are admitted in
turn, the one with the least share first. A caller's requests go by urgency, then by due time of the
first token (queues.py). A caller above an equal share gives way to one below it.

ChunkLimit owns the measured times of forwards and derives the size of a prefill chunk;
share_chunk() divides it among prompts. Thread rule: the engine loop's.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import count
from types import MappingProxyType

import numpy as np

from tasuki.engine.accounting import LineFit
from tasuki.engine.config import EngineConfig
from tasuki.engine.pictures.placed import PictureSpan
from tasuki.engine.pictures.row_store import PictureNumber
from tasuki.engine.progress import BatchIndices, ProgressTable
from tasuki.engine.request import (
    Active,
    AwaitingGrant,
    Decoding,
    Encoding,
    Loading,
    Prefilling,
    Request,
    Retracted,
    Waiting,
)
from tasuki.engine.runner.base import DeviceLost
from tasuki.engine.speculation.draft_limit import DraftLimit
from tasuki.engine.speculation.drafting import Drafting
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.pycache.prefix_cache import HybridPrefixCache

from .admission import QueueLimit, Seats
from .checkpoints import keep_state
from .pictures_elsewhere import Pictures
from .queues import CallerShares, RunningRequests, WaitingQueue
from .scheduled_forward import ScheduledForward, ScheduledSequence
from .shared_prompts import follow, leader_of, load_leader_of, pays

log = logging.getLogger(__name__)

_GROWTH = 2.0
"""Limit for the prompt tokens of the next forward, as a multiple of a measured forward's."""


class ChunkLimit:
    """The limit of prompt tokens in a forward together with answers, so no answer waits too long.

    Owns the measured limit. Thread rule: the engine loop's. Invariant: the limit is at least a page
    and at most a chunk; without a time limit always a chunk.
    """

    def __init__(self, chunk: int, most_seconds: float | None) -> None:
        """chunk: prompt tokens of a forward. most_seconds: limit of a forward with answers; None:
        no limit."""
        self._chunk = chunk
        self._most_seconds = most_seconds
        self._beside_answers = chunk if most_seconds is None else PAGE_TOKENS

    def tokens(self, *, beside_answers: bool) -> int:
        """Return the number of prompt tokens allowed in the next forward. beside_answers: True if
        it has answers too."""
        return self._beside_answers if beside_answers else self._chunk

    def completed(self, forward: ScheduledForward, seconds: float) -> None:
        """Record a forward's duration, to adapt the limit. Forwards without answers or without
        prompts are ignored, and all without a limit of seconds."""
        if self._most_seconds is None:
            return
        prompts = sum(not item.decodes for item in forward.prompts)
        if not prompts or prompts == len(forward):
            return
        tokens = forward.prompt_tokens
        fitting = tokens * min(_GROWTH, self._most_seconds / max(seconds, 1e-9))
        # A forward with few tokens proves no higher limit: it shows only its own size to fit.
        if fitting < self._beside_answers or tokens >= self._beside_answers:
            pages = max(1, int(fitting) // PAGE_TOKENS)
            self._beside_answers = min(self._chunk, pages * PAGE_TOKENS)


_OLDEST_EVERY = 4


@dataclass(frozen=True)
class Demand:
    """A prompt's demand for tokens of a forward: tokens [start, length) are still to be forwarded.

    sought: position to be reached first, for requests waiting there, at most length. seconds_left:
    seconds until its first token is due; infinite without a due time.

    share_chunk() divides the chunk. Each caller has an equal part. A part left unused while more
    was wanted is owed to the caller: deficit round robin (Shreedhar and Varghese, 1995). Within a
    part the prompt with the least left comes first, with at most three quarters of the chunk. So a
    long prompt delays a short one by a few chunks, not by its length. Before these come prompts
    that would miss their due time behind all others and can still meet it, the earliest due first.
    Every fourth chunk begins with the oldest prompt, so a stream of short ones never stops a long
    one. Tokens unused by one caller go to others, on their own account.
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
"""Prompt tokens a caller is still owed from earlier chunks, by caller; negative: had in advance."""


def share_chunk(
    demands: Sequence[Demand],
    budget: int,
    turn: int,
    speed: float = math.inf,
    owed: Owed = MappingProxyType({}),
) -> list[int]:
    """Return each demand's stop in the next forward; its start if it gets nothing. A stop inside a
    prompt is on a page boundary. demands: the oldest first. budget: tokens in all. turn: number of
    the chunk. speed: prompt tokens a second; infinite if unknown. owed: tokens owed to callers."""
    stops = [demand.start for demand in demands]
    if not demands:
        return stops
    order = _in_order(demands, speed)
    if turn % _OLDEST_EVERY == 0:
        # The oldest has index 0; the others stay in their order.
        order.sort(key=bool)
    left = budget

    def take(index: int, most: int) -> int:
        """Give the demand at `index` more tokens, up to `most` in this chunk. Return the number
        added."""
        nonlocal left
        demand, before = demands[index], stops[index]
        stop = min(demand.length, before + left, demand.start + most)
        if stop < demand.length:
            stop = stop // PAGE_TOKENS * PAGE_TOKENS
        stops[index] = max(before, stop)
        left -= stops[index] - before
        return stops[index] - before

    callers = sorted({demand.caller for demand in demands})
    first = turn % len(callers)
    callers = callers[first:] + callers[:first]
    # The caller owed most comes first. Among equals the first one changes each time.
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
    """Return the tokens owed to callers after this chunk. A caller wanting no more is owed nothing;
    the amount is at most a chunk."""
    left = dict.fromkeys((demand.caller for demand in demands), 0)
    got = dict(left)
    for demand, stop in zip(demands, stops, strict=True):
        got[demand.caller] += stop - demand.start
        left[demand.caller] += demand.length - stop
    # Share the tokens given, not the budget. A remainder smaller than a page is owed to no caller.
    part = sum(got.values()) / max(1, len(got))
    return {
        caller: max(-budget, min(budget, owed.get(caller, 0.0) + part - tokens))
        for caller, tokens in got.items()
        if left[caller]
    }


def _in_order(demands: Sequence[Demand], speed: float) -> list[int]:
    last = sum(demand.left for demand in demands) / speed

    def rank(index: int) -> tuple[float, int]:
        demand = demands[index]
        hurries = demand.left / speed <= demand.seconds_left < last
        return demand.seconds_left if hurries else math.inf, demand.left

    return sorted(range(len(demands)), key=rank)


_LEAST_SECONDS = 1e-9


class Hold(Enum):
    """The requests kept from running by a pause. NEW: waiting ones. ALL: every request."""

    NOTHING = "nothing"
    NEW = "new"
    ALL = "all"


_NO_ROWS: BatchIndices = np.empty(0, dtype=np.intp)

Admit = Callable[[Request], bool]


@dataclass(frozen=True)
class _Proposed:
    """Drafts for a request's next forward. They are placeholders if the draft layer makes them
    before the forward (to_guess), or the runner holds them (at_index)."""

    request: Request
    state: Decoding
    drafting: Drafting
    drafts: tuple[int, ...]
    to_guess: bool
    at_index: bool


class Scheduler:
    """Chooses the content of each forward. `admit(request)` moves a waiting request on and returns
    True if it could (Engine._admit)."""

    def __init__(
        self,
        cache: HybridPrefixCache,
        config: EngineConfig,
        admit: Admit,
        limit: QueueLimit,
        seats: Seats,
        drafts: DraftLimit,
        max_batch: int,
        pictures: Pictures | None = None,
    ) -> None:
        """limit: gets each request beginning to wait. seats: number of running requests; learns
        from the forwards. drafts: limits drafts of answers. max_batch: most requests in one
        forward; the config may leave it open. pictures: encoder of pictures; None: prompts have
        none."""
        self._cache = cache
        self._admit = admit
        self._limit = limit
        self.max_batch = max_batch
        self.seats = seats
        self._drafts = drafts
        self.pictures = pictures
        self._chunk = ChunkLimit(config.prefill_chunk_tokens, config.max_itl_seconds)
        self._chunk_seconds = LineFit()
        """Measured seconds of a forward as a line over its prompt tokens."""
        self._shares = CallerShares(cache, seats)
        self._computing: list[Request] = []
        """Admitted requests with prompts not computed yet; some may be over."""
        self._chunks = count()
        self._owed: dict[str, float] = {}
        self._first_row = 0
        self._first_watched = 0
        self.retractions = 0
        """Number of times a request's memory was taken back."""
        self.hold = Hold.NOTHING
        self.waiting = WaitingQueue()
        self.progress = ProgressTable(cache.arena.slabs)
        self.running = RunningRequests(self.progress)

    def enqueue(self, request: Request) -> None:
        self._limit.entered(request)
        self.waiting.add(request)

    def requeue(self, request: Request) -> None:
        """Queue the request ahead of requests not begun yet, because it was begun before."""
        self._limit.entered(request)
        self.waiting.add(request, returned=True)

    def start(self, request: Request) -> None:
        """Run a request with a hand-over's allocation. REQUIRES: it is Prefilling or Decoding."""
        self.running.add(request)

    def drop(self, request: Request) -> None:
        """Remove a request from the running and waiting ones, and release its pictures. The caller
        releases its allocation."""
        self.running.discard(request)
        self.waiting.discard(request)
        self._release_pictures(request)

    def set_apart(self, failed: Sequence[ScheduledSequence]) -> None:
        """Restart the requests of a failed forward, each alone in its forwards until one has
        succeeded. They keep the results completed before it. Lost is the possibly half-written
        part, and the state overwritten by a later forward in flight. REQUIRES: all are live."""
        for item in reversed(failed):
            state = item.active
            newest = state.progress.num_scheduled == item.stop
            if newest and item.write_slot != state.state_slot:
                keep_state(self._cache, item.request, state)
            self._cache.release(state.allocation)
            item.request.suspect = True
            self._give_way(item.request)

    def due_seconds(self, request: Request) -> float | None:
        """Return the seconds until the request's first token is due; None without a due time, or if
        it has passed."""
        left = self._limit.seconds_left(request)
        return left if 0 < left < math.inf else None

    def completed(self, forward: ScheduledForward, seconds: float) -> None:
        """Record a forward's duration: for prompt tokens if it had any, else for steps."""
        self._chunk.completed(forward, seconds)
        if tokens := forward.prompt_tokens:
            self._chunk_seconds.add(tokens, seconds)
        elif forward:
            self.seats.steps.completed(len(forward), seconds)

    def completed_after(
        self, forward: ScheduledForward, tokens: int, seconds: float, *, planned: bool
    ) -> None:
        """Record a decode-only forward; ignore others. tokens: number of tokens it produced.
        seconds: time since the previous forward ended. planned: True if it was planned while the
        previous one ran."""
        if forward and not forward.prompts:
            self._drafts.completed(forward.shape, tokens, seconds, planned=planned)

    def schedule(self, drafts: int) -> ScheduledForward:
        """Return the next forward, with at most `drafts` drafts per answer; empty if nothing can
        run. REQUIRES: no forward is in flight if this one or the one before has drafts.

        Without drafts the one before may be in flight. Its tokens count as computed, and its
        sampled token as sampled. If its sampled token proves to be the last, one forward was in
        vain.
        """
        if self.hold is Hold.ALL:
            return ScheduledForward(self.running.schedule_next(_NO_ROWS), ())
        if self.hold is Hold.NOTHING:
            self._admit_waiting()
        batch_indices = self._growable()
        if drafts:
            drafted = self._draft(batch_indices, drafts)
        else:
            drafted = []
            self._watch()
        if drafted:
            taken = {item.batch_index for item in drafted}
            batch_indices = batch_indices[
                [batch_index not in taken for batch_index in batch_indices.tolist()]
            ]
        answers = self.running.schedule_next(batch_indices)
        rows = len(answers) + len(drafted)
        budget = self._chunk.tokens(beside_answers=bool(rows))
        return ScheduledForward(answers, self._chunks_of(budget, rows), drafted)

    @property
    def drafts_next(self) -> int:
        """The number of drafts per answer allowed in the next forward. Drafts follow known tokens,
        so the forward before must complete first if this is not 0."""
        drafting = self.running.drafting.values()
        return self._drafts.next(len(self.running), drafting) if drafting else 0

    def _draft(self, batch_indices: BatchIndices, most: int) -> list[ScheduledSequence]:
        """Return the rows with drafts, or followed by the draft layer's guesses, among the answers
        of the next forward."""
        proposed = self._proposed(batch_indices, most)
        counts = [(one.drafting, len(one.drafts)) for one in proposed]
        most = self._drafts.of_step(len(batch_indices), counts)
        found = []
        for one in proposed if most else ():
            drafts, guesses = one.drafts[:most], min(one.drafting.guesses, most)
            if drafts or guesses:
                self._make_room(one.request, one.state, len(drafts) + 1 + guesses)
                found.append(self._drafted(one, drafts, most))
        return found

    def _proposed(self, batch_indices: BatchIndices, most: int) -> list[_Proposed]:
        turns = set(batch_indices.tolist())
        found = []
        for request, drafting in self.running.drafting.items():
            state = request.state
            if isinstance(state, Decoding) and state.progress.batch_index in turns:
                left = min(most, request.final_length - request.length)
                drafts = drafting.propose(request.output, left)
                at_index = 0 if drafts else drafting.drafts_at_index(request.output, left)
                asked = drafts or at_index
                first = 0 if asked else drafting.first_guesses(request.output, left)
                drafts = drafts or (0,) * (at_index + first)
                found.append(_Proposed(request, state, drafting, drafts, first > 0, at_index > 0))
        return found

    def _watch(self) -> None:
        """Compare some drafters' proposals with their answers, other drafters each time."""
        drafting = list(self.running.drafting.items()) if self._drafts.watched else []
        count = min(self._drafts.watched, len(drafting))
        for place in range(self._first_watched, self._first_watched + count):
            request, one = drafting[place % len(drafting)]
            one.watch(request.output)
        self._first_watched += count

    def _make_room(self, request: Request, state: Decoding, tokens: int) -> None:
        """Extend the allocation by `tokens` tokens if memory is free, at most to the request's
        end."""
        wanted = min(request.length + tokens, request.final_length + 1)
        if wanted > state.allocation.capacity_tokens:
            self._cache.extend(state.allocation, wanted)
            self.running.grown(request, state)

    def _drafted(
        self, proposed: _Proposed, drafts: tuple[int, ...], most: int
    ) -> ScheduledSequence:
        """Return the row with as many of these drafts, and at most `most` guesses, as its pages can
        hold."""
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
            drafts_at_index=proposed.at_index and len(drafts) > 0,
            guesses=min(most, _guesses(request, state, stop)),
        )

    def _admit_waiting(self) -> None:
        """Admit requests, the caller with the least share first, until no request finds memory."""
        computes = AwaitingGrant | Loading | Prefilling
        self._computing = [one for one in self._computing if isinstance(one.state, computes)]
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
        """Try to begin the caller's first waiting requests. Return True if one left the line."""
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
        """Return the number of requests with a load in progress, to run after it."""
        return sum(isinstance(request.state, Loading) for request in self._computing)

    def parked(self, request: Request) -> bool:
        """Park a waiting request (let it wait outside its line) if another one computes or loads
        its prefix. Return True if parked. Return False if waiting does not pay, or for a request
        with output or a gateway's transfer."""
        if request.output or request.gateway_transfer is not None:
            return False
        if self._follows_load(request):
            return True
        leader = leader_of(request, self._computing)
        if leader is None:
            return False
        match = self._cache.match(request.keys, request.salt, request.cursor)
        if not pays(leader, match.usable_tokens):
            return False
        follow(leader)
        self.waiting.park(request, leader)
        return True

    def _follows_load(self, request: Request) -> bool:
        if request.load_failed is not None or not self._loading():
            return False
        match = self._cache.match(request.keys, request.salt, request.cursor)
        leader = load_leader_of(request, self._computing, match.kv_tokens)
        if leader is None:
            return False
        self.waiting.park(request, leader)
        return True

    def _chunks_of(self, budget: int, rows: int) -> list[ScheduledSequence]:
        """Return the prompt chunks of the forward, without prompts waiting for picture rows.
        budget: most prompt tokens. rows: number of the forward's other rows."""
        unfinished = self.running.unfinished_prompts()
        if self.pictures is not None:
            unfinished = [request for request in unfinished if self._has_rows(request)]
        unfinished = unfinished[: max(0, self.max_batch - rows)]
        if not unfinished:
            return []
        prompts = [(request, _prefilling(request)) for request in unfinished]
        demands = [self._demand(request, state) for request, state in prompts]
        line = self._chunk_seconds.line()
        speed = math.inf if line is None else budget / max(line.seconds(budget), _LEAST_SECONDS)
        stops = share_chunk(demands, budget, next(self._chunks), speed, self._owed)
        self._owed = owed_after(demands, stops, budget, self._owed)
        return [
            self._cut(request, state, stop)
            for (request, state), stop in zip(prompts, stops, strict=True)
            if stop > state.progress.num_scheduled
        ]

    def _demand(self, request: Request, state: Prefilling) -> Demand:
        start, stop = state.progress.num_scheduled, request.length
        sought = self.waiting.sought(request, start, stop)
        if self.pictures is not None and request.pictures is not None:
            stop = self.pictures.ready_until(request, start)
        left = self._limit.seconds_left(request)
        return Demand(request.caller, start, stop, min(sought, stop), left)

    def _has_rows(self, request: Request) -> bool:
        """Return True if the rows of the prompt's next tokens exist. Move the request to Prefilling
        if so, else to Encoding."""
        if self.pictures is None or request.pictures is None:
            return True
        state = _prefilling(request)
        start = state.progress.num_scheduled
        ready = self.pictures.ready_until(request, start) > start
        wanted = Prefilling if ready else Encoding
        if type(state) is not wanted:
            request.move(
                wanted(
                    *(state.allocation, state.progress, state.checkpoints),
                    *(state.grant, state.pages_sent),
                )
            )
        return ready

    def _growable(self) -> BatchIndices:
        """Return the batch indices of answering requests with memory for one more token. Others are
        retracted to make space."""
        batch_indices = self.running.answering()
        # One token exists, or is in flight, that no forward has yet. The next token follows it.
        needed = self.progress.num_scheduled[batch_indices] + 1
        short = batch_indices[self.running.capacities[batch_indices] < needed]
        if len(short):
            for request, state in [(request, request.state) for request in self.running.of(short)]:
                # A request retracted for an earlier one has no allocation to grow.
                if request.state is state:
                    assert isinstance(state, Active)
                    self._grow(request, state)
            batch_indices = self.running.answering()
        return self._in_turns(batch_indices)

    def _in_turns(self, answering: BatchIndices) -> BatchIndices:
        """Return the batch indices for the next forward, leaving one row for a waiting prompt. If
        hand-overs brought more requests than rows, they take turns, so each progresses."""
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

    def retract_all(self) -> None:
        """Retract all running requests. They keep their order. REQUIRES: no forward is in
        flight."""
        for request in reversed(list(self.running)):
            self._retract(request)

    def _retract(self, request: Request) -> None:
        """Retract a request; its computed part stays cached."""
        state = request.state
        assert isinstance(state, Active)
        keep_state(self._cache, request, state)
        self._cache.release(state.allocation)
        self.retractions += 1
        self._give_way(request)

    def _give_way(self, request: Request) -> None:
        self.running.discard(request)
        self._release_pictures(request)
        request.mixed = False
        request.move(Retracted())
        request.move(Waiting())
        self.requeue(request)

    def _release_pictures(self, request: Request) -> None:
        """Release a request's pictures. A defect there is logged, because the request must still
        end. Raises DeviceLost."""
        if self.pictures is None:
            return
        try:
            self.pictures.release(request)
        except DeviceLost:
            raise
        except Exception:
            log.exception("the pictures of request %s are not released", request.id)

    def _cut(self, request: Request, state: Prefilling, stop: int) -> ScheduledSequence:
        """Return the prompt's tokens up to `stop`, with slots for the checkpoints among them; skip
        checkpoints without a free slot."""
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
            *(request, state, start, stop, read, written, num_sampled, tuple(kept)),
            guesses=guesses,
            pictures=self._rows_among(request, start, stop),
        )

    def _rows_among(
        self, request: Request, start: int, stop: int
    ) -> tuple[tuple[PictureSpan, PictureNumber], ...]:
        """Return the rows of pictures among the prompt's tokens [start, stop): pairs of a span and
        its stored rows' number."""
        encoder, pictures = self.pictures, request.pictures
        if encoder is None or pictures is None:
            return ()
        spans = pictures.spans(start, stop)
        return tuple((span, encoder.number_of(request, span.index)) for span in spans)


def _guesses(request: Request, state: Active, stop: int) -> int:
    """Return the number of tokens the request's draft layer may propose after `stop` and the token
    sampled there. The request's pages limit it."""
    if request.drafting is None:
        return 0
    return max(0, min(request.drafting.guesses, state.allocation.capacity_tokens - stop - 1))


def _prefilling(request: Request) -> Prefilling:
    assert isinstance(request.state, Prefilling)
    return request.state
