"""Counters and measures of an engine: step times, seconds as a function of an amount, evictions,
cache hits and usage."""

import time
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tasuki.engine.speculation.drafting import DraftSource
from tasuki.pycache._cpp_cache import CheckpointKind, Match, MissReasons, PageMatch, TierLoad
from tasuki.pycache._cpp_cache import Eviction as Decision
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.pycache.prefix_cache import HybridPrefixCache

from . import messages as m
from .messages import EvictedCheckpoint, Eviction, HitBreakdown, RequestId, StepReport, TimeSpread
from .pictures.seen_picture import pictures_report
from .request import Request

LEAST = 8
FRESH = 64
_KEPT = 0.95
"""Factor on the weight of all older samples when a sample is added."""
_SPREAD = 0.1
"""Smallest relative standard deviation of the amounts to fit a slope. Below it a slope is noise."""


@dataclass(frozen=True)
class Line:
    """Estimated seconds as a linear function of an amount: `fixed`, plus `each` for every unit."""

    fixed: float
    each: float

    def seconds(self, amount: float) -> float:
        return self.fixed + self.each * amount


class LineFit:
    """A least-squares line of seconds over an amount (such as tokens or bytes). Older samples weigh
    less.

    Owns decayed sums and has no clock: callers bring durations. Thread rule: the engine loop.
    Invariants: there is no line before LEAST samples. After FRESH decisions without a sample, the
    next decision gets no line. The configured constant then decides once, so the other choice is
    tried again by one request only. The seconds of a line never fall with the amount.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.verdicts_since = 0
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, amount: float, seconds: float) -> None:
        """Add a sample: `seconds` measured for `amount`. REQUIRES: amount > 0, seconds >= 0."""
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
    """Seconds of steps, idle seconds of the device between two steps, and steps counted by most
    drafts of an answer.

    Owns histograms and sums, nothing else. Thread rule: the engine loop's.
    """

    def __init__(self) -> None:
        self.steps = TimeCounter(STEP_BOUNDS)
        self.idle = TimeCounter(IDLE_BOUNDS)
        self.answering = LineFit()
        """Seconds of forwards with answers, by the number of answers. Prompt chunks in the same
        forward are included."""
        self._drafts: Counter[int] = Counter()

    def drafted(self, most: int) -> None:
        """Count a step with drafts. most: largest number of drafts of one answer in the step."""
        self._drafts[most] += 1

    def report(self) -> StepReport:
        drafts = {str(most): count for most, count in sorted(self._drafts.items())}
        return StepReport(self.steps.spread(), self.idle.spread(), drafts)


def breakdown(match: Match, lost: EvictedCheckpoint | None) -> HitBreakdown:
    pages = _counts(match.prompt_tokens, match.in_pages, None, None)
    return _counts(match.prompt_tokens, match, lost, pages)


def causes_of(reasons: MissReasons) -> dict[str, int]:
    """Return the numbers of unusable tokens by their causes' public names. The prefix tree's
    `below` becomes `LOAD_DECLINED`: a tier has the tokens, but they were not loaded."""
    causes = reasons.as_dict()
    declined = causes.pop("below", None)
    return causes if declined is None else {m.LOAD_DECLINED: declined, **causes}


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
    """Return the hit `computed` with causes for both nodes of a prefill/decode pair.

    computed: the hit on the node computing the prompt. held: the hit of the same prompt in this
    node's cache, at the time of the request. Tokens held here but missing on the computing node
    become `not_pulled`. Tokens new only to the computing node take this node's cause. in_pages
    stays the computing node's. Callers sharing a cache must not learn the place of the computation
    (server/auth/tenants.py). Invariant: usable_tokens + the sum of causes does not change.
    """
    known = min(max(computed.usable_tokens, held.usable_tokens), computed.prompt_tokens)
    causes = dict.fromkeys((m.NOT_PULLED, *m.CAUSES_IN_ORDER), 0)
    causes[m.NOT_PULLED] = known - computed.usable_tokens
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
    """Yield each cause with its range of tokens [start, stop), in the prefix tree's order."""
    start = hit.usable_tokens
    for cause in m.CAUSES_IN_ORDER:
        stop = start + hit.causes.get(cause, 0)
        yield cause, start, stop
        start = stop


_REMEMBERED = 4096


class EvictionLedger:
    """A record of the cache's evictions and of the requests causing them.

    Owns a bounded memory of evictions, by number. Reads the cache's decisions and makes none.
    Thread rule: the engine loop's. Invariant: an eviction is attributed before its request may
    release its allocation, so `collect` runs once a step.
    """

    def __init__(
        self, cache: HybridPrefixCache, owners: Callable[[], Mapping[int, RequestId]]
    ) -> None:
        """owners: returns the requests with allocations now, by the allocation's id."""
        self._cache = cache
        self._pages_per_slab = cache.arena.layout.pages_per_slab
        self._owners = owners
        self._evictions: OrderedDict[int, Eviction] = OrderedDict()
        self._unreported: list[Eviction] = []

    def collect(self) -> None:
        """Record the cache's evictions since the last call. Only the newest `_REMEMBERED` are kept
        for later look-ups."""
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
        """Return the evictions collected since the last call, oldest first."""
        made, self._unreported = tuple(self._unreported), []
        return made

    def lost(self, match: Match) -> EvictedCheckpoint | None:
        """Return the evicted state with the most tokens of the prompt; None if none is known."""
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
    """Return the tokens of KV loaded from each tier: (tier name, tokens) pairs. The last pair is
    the tier with the state; its tokens may be 0. names: the tiers' names, by number."""
    state_from = load.state[0]
    pages = Counter(tier for tier, *_ in load.pages)
    others = sorted(tier for tier in pages if tier != state_from)
    return tuple((names[tier], pages[tier] * PAGE_TOKENS) for tier in (*others, state_from))


def with_loaded(
    hit: HitBreakdown, before: int, brought: tuple[tuple[str, int], ...]
) -> HitBreakdown:
    """Return the hit of a prompt after its load has arrived, with the loaded tokens by tier.

    before: tokens usable without the load. brought: loaded tokens by tier, from brought_by(). KV
    already in the arena became usable through the loaded state, so it counts for the state's tier.
    """
    left = hit.usable_tokens - before
    loaded = {}
    for tier, tokens in brought[:-1]:
        loaded[tier] = min(tokens, left)
        left -= min(tokens, left)
    if left > 0:
        loaded[brought[-1][0]] = left
    return replace(hit, loaded={name: tokens for name, tokens in loaded.items() if tokens > 0})


def with_failed(hit: HitBreakdown, boundary: int | None) -> HitBreakdown:
    """Return the hit with the tokens of a failed load under the cause `LOAD_FAILED`.

    Pure. Invariant: usable tokens + causes equal the prompt.

    boundary: number of first tokens a failed load should have made usable, before the prompt was
    looked up again; None: no load failed. These tokens count as lost by the load, whichever cause
    the prefix tree gives for them.
    """
    if boundary is None:
        return hit
    left = max(0, min(boundary, hit.prompt_tokens) - hit.usable_tokens)
    causes = dict(hit.causes)
    failed = 0
    # The tree assigns its causes to a prompt in this order, from the last usable token on.
    for cause in m.CAUSES_IN_ORDER:
        taken = min(left, causes.get(cause, 0))
        if taken:
            causes[cause] -= taken
            left -= taken
            failed += taken
    in_pages = None if hit.in_pages is None else with_failed(hit.in_pages, boundary)
    if failed:
        causes[m.LOAD_FAILED] = failed
    return replace(hit, causes=causes, in_pages=in_pages)


def with_changed(hit: HitBreakdown, changed: tuple[int, int] | None) -> HitBreakdown:
    """Return the hit with tokens changed by the chat template counted apart from new tokens.

    Pure. Invariant: usable tokens + causes equal the prompt.

    changed: tokens [begin, end) of the prompt different from the previous turn; None: no
    difference. Only tokens new to the prefix tree can have this cause. They end the prompt.
    """
    if changed is None:
        return hit
    begin, end = changed
    new = hit.causes.get("new", 0)
    tokens = min(end, hit.prompt_tokens) - max(begin, hit.prompt_tokens - new)
    if tokens <= 0:
        return hit
    in_pages = None if hit.in_pages is None else with_changed(hit.in_pages, changed)
    causes = {**hit.causes, "new": new - tokens, m.TEMPLATE_CHANGED: tokens}
    return replace(hit, causes=causes, in_pages=in_pages, template_changed_at=begin)


class PromptLookups:
    """Counts of prompt tokens and cached tokens of an engine's requests.

    Invariant: a request counts once, at its end, with the figures of its usage report. Retractions
    and repeated lookups do not count again. The node of the computation does not matter. (The
    prefix tree's own counters count every lookup.) Thread rule: the engine loop's.

    prompt_tokens: total of all prompts. usable_tokens: prompt tokens not computed, because they
    were cached.
    """

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.usable_tokens = 0

    def ended(self, hit: HitBreakdown | None) -> None:
        """Count the prompt of an ended request or transfer. hit: the reported hit; None: the prompt
        was never looked up."""
        if hit is not None:
            self.prompt_tokens += hit.prompt_tokens
            self.usable_tokens += hit.usable_tokens


def usage_of(request: Request) -> m.Usage:
    """Return the usage report of a finished request for its client. Only reads the request."""
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
        pictures=_pictures(request),
        **_drafted(request),
    )


def _pictures(request: Request) -> m.PicturesReport | None:
    is_here = request.prefilled_on == "local"
    return pictures_report(request.pictures, request.seen, request.hit, is_here=is_here)


def _drafted(request: Request) -> dict[str, Any]:
    """Return the fields about drafts in the request's usage report; none without a drafter."""
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


_REMEMBERED_TRANSFERS = 4096


def transfer_name(transfer_id: m.TransferId) -> RequestId:
    """Return the request id used by a prefill engine for a transfer."""
    return RequestId(f"room-{transfer_id}")


class TransferNames:
    """A map from transfers to the requests handed over in them. It turns a node's report about a
    transfer into a report about a request.

    Owns a bounded memory; the oldest transfer is forgotten first. Thread rule: the engine loop's.
    """

    def __init__(self) -> None:
        self._requests: OrderedDict[RequestId, RequestId] = OrderedDict()

    def note(self, transfer_id: m.TransferId, request: RequestId) -> None:
        self._requests[transfer_name(transfer_id)] = request
        if len(self._requests) > _REMEMBERED_TRANSFERS:
            self._requests.popitem(last=False)

    def told_here(self, hit: HitBreakdown) -> HitBreakdown:
        """Return the hit with this node's request id for the request causing the eviction of the
        prompt's state. The prefill node's report names this request by its transfer. A transfer of
        another decode node keeps its name. A hit without such a request is returned unchanged."""
        if hit.lost is None or hit.lost.eviction is None or hit.lost.eviction.taken_by is None:
            return hit
        taker = RequestId(hit.lost.eviction.taken_by)
        eviction = replace(hit.lost.eviction, taken_by=self._requests.get(taker, taker))
        return replace(hit, lost=replace(hit.lost, eviction=eviction))
