"""Counters and measures of an engine: steps, seconds by amount, evictions, hits and usage.

Owns counters and a bounded memory of evictions. It decides nothing. Thread rule: the engine loop's.
A hit's usable tokens and causes always add up to the prompt.
"""

import time
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tasuki.engine.messages.reports import (
    CAUSES_IN_ORDER,
    LOAD_DECLINED,
    LOAD_FAILED,
    NOT_PULLED,
    TEMPLATE_CHANGED,
)
from tasuki.engine.speculation.drafting import DraftSource
from tasuki.pycache._cpp_cache import CheckpointKind, Match, MissReasons, PageMatch, TierLoad
from tasuki.pycache._cpp_cache import Eviction as Decision
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.pycache.prefix_cache import HybridPrefixCache

from . import messages as m
from .messages import EvictedCheckpoint, Eviction, HitBreakdown, RequestId, StepReport, TimeSpread
from .request import Request

LEAST = 8
FRESH = 64
_KEPT = 0.95
"""Of a sample's weight when the next one comes."""
_SPREAD = 0.1
"""Below that relative deviation of the amounts a slope is taken for noise."""


@dataclass(frozen=True)
class Line:
    """Seconds that an amount takes: `fixed`, and `each` for every unit."""

    fixed: float
    each: float

    def seconds(self, amount: float) -> float:
        return self.fixed + self.each * amount


class LineFit:
    """The line of seconds over an amount: least squares, older samples weighing less.

    Owns decayed sums and has no clock: callers bring durations. Thread rule: the engine loop.
    Invariants: a line is given only after LEAST samples; after FRESH decisions without a sample
    the next one has no line, so that the other choice is tried again by the constant, once, and
    not by every request that comes meanwhile. A line never falls with the amount.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.verdicts_since = 0
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, amount: float, seconds: float) -> None:
        """REQUIRES: amount > 0, seconds >= 0."""
        self.samples += 1
        self.verdicts_since = 0
        self._weight = _KEPT * self._weight + 1.0
        self._x = _KEPT * self._x + amount
        self._y = _KEPT * self._y + seconds
        self._xx = _KEPT * self._xx + amount * amount
        self._xy = _KEPT * self._xy + amount * seconds

    def line(self) -> Line | None:
        if self.samples < LEAST or self.verdicts_since > FRESH:
            return None
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - mean_x * mean_x
        through_origin = Line(0.0, mean_y / mean_x)
        if variance < (_SPREAD * mean_x) ** 2:
            return through_origin
        each = max(0.0, (self._xy / self._weight - mean_x * mean_y) / variance)
        fixed = mean_y - each * mean_x
        return through_origin if fixed < 0 else Line(fixed, each)


STEP_BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
IDLE_BOUNDS = (0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 1)


class TimeCounter:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._seconds += seconds

    def spread(self) -> TimeSpread:
        return TimeSpread(self._bounds, tuple(self._counts), self._seconds)


class StepTimes:
    """Seconds of steps, idle seconds of the device between two of them, and drafts of steps.

    answering: seconds of a forward by its number of answers, with the chunks of prompts that these
    waited for. Owns counts by size and sums, nothing else. Thread rule: the engine loop's.
    """

    def __init__(self) -> None:
        self.steps = TimeCounter(STEP_BOUNDS)
        self.idle = TimeCounter(IDLE_BOUNDS)
        self.answering = LineFit()
        """Seconds of forwards with answers, and with the chunks of prompts that these waited for,
        by their answers."""
        self._drafts: Counter[int] = Counter()

    def drafted(self, most: int) -> None:
        """A step, of answers of which some may be drafted, had so many drafts of one at most."""
        self._drafts[most] += 1

    def report(self) -> StepReport:
        drafts = {str(most): count for most, count in sorted(self._drafts.items())}
        return StepReport(self.steps.spread(), self.idle.spread(), drafts)


def breakdown(match: Match, lost: EvictedCheckpoint | None) -> HitBreakdown:
    pages = _counts(match.prompt_tokens, match.in_pages, None, None)
    return _counts(match.prompt_tokens, match, lost, pages)


def causes_of(reasons: MissReasons) -> dict[str, int]:
    """By their public names. Of what a tier has and was not loaded the tree says only that."""
    causes = reasons.as_dict()
    declined = causes.pop("below", None)
    return causes if declined is None else {LOAD_DECLINED: declined, **causes}


def _counts(
    prompt_tokens: int,
    match: Match | PageMatch,
    lost: EvictedCheckpoint | None,
    in_pages: HitBreakdown | None,
) -> HitBreakdown:
    return HitBreakdown(
        prompt_tokens=prompt_tokens,
        kv_tokens=match.kv_tokens,
        usable_tokens=match.usable_tokens,
        causes=causes_of(match.miss_reasons),
        checkpoint_source=_name(match.checkpoint_kind),
        lost=lost,
        in_pages=in_pages,
    )


def _name(kind: CheckpointKind | None) -> str | None:
    return None if kind is None else kind.name.lower()


def pair_hit(computed: HitBreakdown, held: HitBreakdown) -> HitBreakdown:
    """`computed` with the causes that the pair lost tokens by.

    computed: by the node that computed the prompt. held: the same prompt in this node's cache when
    it was asked for. What this node could have given and that one had not is `not_pulled`; what is
    new to that node alone was lost for this node's cause. in_pages stays that node's: callers that
    share a cache do not learn where a prompt was computed (server/auth/tenants.py). Invariant:
    usable_tokens + the sum of causes stays as it was.
    """
    known = min(max(computed.usable_tokens, held.usable_tokens), computed.prompt_tokens)
    causes = dict.fromkeys((NOT_PULLED, *CAUSES_IN_ORDER), 0)
    causes[NOT_PULLED] = known - computed.usable_tokens
    for cause, start, stop in _spans(computed):
        start = max(start, known)
        if cause != "new":
            causes[cause] += max(0, stop - start)
            continue
        for here, begin, end in _spans(held):
            begin, end = max(begin, start), min(end, stop)
            causes[here] += max(0, end - begin)
            start = max(start, end)
        causes["new"] += max(0, stop - start)
    return replace(computed, causes=causes)


def _spans(hit: HitBreakdown) -> Iterator[tuple[str, int, int]]:
    """Each cause with the tokens [start, stop) that it took, as the tree lays them over a
    prompt."""
    start = hit.usable_tokens
    for cause in CAUSES_IN_ORDER:
        stop = start + hit.causes.get(cause, 0)
        yield cause, start, stop
        start = stop


_REMEMBERED = 4096


class EvictionLedger:
    """Which request took whose place in the cache.

    Owns a bounded memory of evictions, by number. Asks the cache for what it decided; decides
    nothing. Thread rule: the engine loop's. Invariant: an eviction is attributed before the request
    that caused it may release its allocation, so `collect` runs once a step.
    """

    def __init__(
        self, cache: HybridPrefixCache, owners: Callable[[], Mapping[int, RequestId]]
    ) -> None:
        """owners: the requests that hold allocations now, by the allocation's id."""
        self._cache = cache
        self._pages_per_slab = cache.arena.layout.pages_per_slab
        self._owners = owners
        self._evictions: OrderedDict[int, Eviction] = OrderedDict()
        self._unreported: list[Eviction] = []

    def collect(self) -> None:
        """Take in what was evicted since the last call."""
        decisions = self._cache.drain_evictions()
        if not decisions:
            return
        owners = self._owners()
        for decision in decisions:
            taken_by = None if decision.allocation is None else owners.get(decision.allocation)
            eviction = self._read(decision, taken_by)
            self._evictions[eviction.sequence] = eviction
            self._unreported.append(eviction)
        while len(self._evictions) > _REMEMBERED:
            self._evictions.popitem(last=False)

    def take_unreported(self) -> tuple[Eviction, ...]:
        """Those collected since the last call, oldest first."""
        made, self._unreported = tuple(self._unreported), []
        return made

    def lost(self, match: Match) -> EvictedCheckpoint | None:
        """What of the prompt had a state that was evicted; None where nothing is remembered."""
        lost = match.lost
        if lost is None:
            return None
        self.collect()
        return EvictedCheckpoint(
            lost.boundary,
            lost.pages_since / self._pages_per_slab,
            self._evictions.get(lost.eviction),
        )

    def _read(self, decision: Decision, taken_by: RequestId | None) -> Eviction:
        return Eviction(
            decision.sequence,
            decision.kind,
            _name(decision.checkpoint_kind),
            decision.boundary,
            decision.pages / self._pages_per_slab,
            decision.score,
            taken_by,
        )


def brought_by(load: TierLoad, names: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """By tier, tokens whose KV it brings; the last one brings the state. names: of the tiers."""
    state_from = load.state[0]
    pages = Counter(tier for tier, *_ in load.pages)
    others = sorted(tier for tier in pages if tier != state_from)
    return tuple((names[tier], pages[tier] * PAGE_TOKENS) for tier in (*others, state_from))


def with_loaded(
    hit: HitBreakdown, before: int, brought: tuple[tuple[str, int], ...]
) -> HitBreakdown:
    """Of a prompt whose load has landed. before: tokens that were usable without it. brought: as of
    brought_by(). KV that stood already became usable by the state, where that is from."""
    left = hit.usable_tokens - before
    loaded = {}
    for tier, tokens in brought[:-1]:
        loaded[tier] = min(tokens, left)
        left -= min(tokens, left)
    if left > 0:
        loaded[brought[-1][0]] = left
    return replace(hit, loaded={name: tokens for name, tokens in loaded.items() if tokens > 0})


def with_failed(hit: HitBreakdown, boundary: int | None) -> HitBreakdown:
    """What a load from a tier below the arena changed of a prompt's hit.

    Pure. Invariant: usable + causes stay the prompt.

    boundary: tokens that a load was to make usable, before the prompt was looked up anew; None
    where none failed. Whatever the tree says of them now, they were lost by that.
    """
    if boundary is None:
        return hit
    left = max(0, min(boundary, hit.prompt_tokens) - hit.usable_tokens)
    causes = dict(hit.causes)
    failed = 0
    # The tree lays its causes over a prompt in this order, from the last usable token on.
    for cause in CAUSES_IN_ORDER:
        taken = min(left, causes.get(cause, 0))
        if taken:
            causes[cause] -= taken
            left -= taken
            failed += taken
    in_pages = None if hit.in_pages is None else with_failed(hit.in_pages, boundary)
    if failed:
        causes[LOAD_FAILED] = failed
    return replace(hit, causes=causes, in_pages=in_pages)


def with_changed(hit: HitBreakdown, changed: tuple[int, int] | None) -> HitBreakdown:
    """Sets tokens that a chat template renders otherwise than before apart from those never seen.

    Pure. Invariant: usable + causes stay the prompt.

    changed: tokens [begin, end) of the prompt that the turn before had otherwise. Only what the
    tree takes for new can be of that cause, which is the prompt's end.
    """
    if changed is None:
        return hit
    begin, end = changed
    new = hit.causes.get("new", 0)
    tokens = min(end, hit.prompt_tokens) - max(begin, hit.prompt_tokens - new)
    if tokens <= 0:
        return hit
    in_pages = None if hit.in_pages is None else with_changed(hit.in_pages, changed)
    causes = {**hit.causes, "new": new - tokens, TEMPLATE_CHANGED: tokens}
    return replace(hit, causes=causes, in_pages=in_pages, template_changed_at=begin)


class PromptLookups:
    """How much of the prompts that came to an engine was cached.

    Invariant: a request counts once, as it ends and by what its usage says, however often it gave
    way and was looked up again, and wherever its prompt was computed; the tree's own counters have
    every lookup. Thread rule: the engine loop's.

    prompt_tokens: of all prompts. usable_tokens: of those tokens, that needed no computing.
    """

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.usable_tokens = 0

    def ended(self, hit: HitBreakdown | None) -> None:
        """Count a request's prompt, or a room's. hit: as reported; None: never looked up."""
        if hit is not None:
            self.prompt_tokens += hit.prompt_tokens
            self.usable_tokens += hit.usable_tokens


def usage_of(request: Request) -> m.Usage:
    """What the client of a request gets to read of it, once it is over. Pure."""
    now = time.monotonic()
    first = request.first_token_at
    return m.Usage(
        prompt_tokens=len(request.prompt),
        completion_tokens=len(request.output),
        hit=None if request.hit is None else with_changed(request.hit, request.changed),
        transfer=request.transfer,
        prefilled_on=request.prefilled_on,
        local_fallback=request.handover_lost,
        time_to_first_token=(now if first is None else first) - request.created,
        seconds=now - request.created,
        pulled=request.pulled,
        route=request.route,
        prefill_choice=request.prefill_choice,
        targets=None if request.targets == m.NO_TARGETS else request.targets,
        **_drafted(request),
    )


def _drafted(request: Request) -> dict[str, Any]:
    """Of its usage."""
    if request.drafting is None:
        return {}
    counts = request.drafting.counts
    drafts = tuple(
        m.DraftUse(source.value, tuple(count.drafted), tuple(count.accepted))
        for source, count in counts.items()
        if count.drafted
    )
    found: dict[str, Any] = {
        "drafts": drafts,
        "drafted_tokens": sum(sum(use.drafted) for use in drafts),
        "accepted_tokens": sum(sum(use.accepted) for use in drafts),
    }
    predicted = counts.get(DraftSource.PREDICTION)
    if predicted is not None:
        accepted = sum(predicted.accepted)
        found["accepted_prediction_tokens"] = accepted
        found["rejected_prediction_tokens"] = sum(predicted.drafted) - accepted
    return found


_REMEMBERED_ROOMS = 4096


def room_name(room: m.RoomId) -> RequestId:
    """How a prefill engine calls the request of a room."""
    return RequestId(f"room-{room}")


class RoomNames:
    """Requests by the rooms they were handed over in, so that what a node reports of a room becomes
    a report of its request.

    Owns a bounded memory; the oldest room goes first. Thread rule: the engine loop's.
    """

    def __init__(self) -> None:
        self._requests: OrderedDict[RequestId, RequestId] = OrderedDict()

    def note(self, room: m.RoomId, request: RequestId) -> None:
        self._requests[room_name(room)] = request
        if len(self._requests) > _REMEMBERED_ROOMS:
            self._requests.popitem(last=False)

    def told_here(self, hit: HitBreakdown) -> HitBreakdown:
        """With this node's name for the request that took the prompt's state; a room of another
        decode node's keeps its own."""
        if hit.lost is None or hit.lost.eviction is None or hit.lost.eviction.taken_by is None:
            return hit
        taker = RequestId(hit.lost.eviction.taken_by)
        eviction = replace(hit.lost.eviction, taken_by=self._requests.get(taker, taker))
        return replace(hit, lost=replace(hit.lost, eviction=eviction))
