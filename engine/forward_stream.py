"""Forwards in flight: the time to plan the next one, its way to the runner, and its sampled
tokens."""

import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasuki.engine.roles.answers import all_sound, unsound
from tasuki.engine.roles.base import Handover
from tasuki.engine.runner.base import Event, InFlightForward, Runner, SampledTokens
from tasuki.engine.scheduling.scheduled_forward import (
    AnswerRows,
    ForwardPlanner,
    ScheduledForward,
    ScheduledSequence,
)
from tasuki.engine.scheduling.scheduler import Scheduler
from tasuki.engine.speculation.drafting import Drafting
from tasuki.model.ops.sampling.prompt_scores import PromptScores
from tasuki.model.ops.sampling.reference import Sampled
from tasuki.pycache.prefix_cache import HybridPrefixCache
from tasuki.utils.signatures import Clock

from .forward_plan import Fold
from .progress import ProgressTable

_KNOWN_FROM = 3
"""Number of measured forwards of one size needed to know their duration."""
_REMEMBERED = 8
"""Number of durations kept for forwards of one size. The shortest one counts."""
_LEAST_SLACK = 0.0003
_FIRST_SLACK = 0.001
_MOST_SLACK = 0.1
_GROWTH = 1.33
_DECAY = 0.999
_LEAST_IDLE = 0.0001
"""Idle seconds of the device between two forwards not counted, because copies and launches always
cause them."""
_IDLE_SHARE = 0.01
"""Idle time of the device before a forward allowed without a longer lead, as a part of the
forward's duration."""


class PlanningTime:
    """The time to plan the next forward while one is in flight.

    A late plan includes requests arriving during the forward in flight. With an early plan a new
    request waits for the rest of this forward and for the whole next one. Owns the durations of the
    last forwards by size, and the lead: the time between the next plan and the forward's end.
    Thread rule: the engine loop's. Invariants: the next plan begins immediately if the duration of
    the forward in flight is not known. The lead grows by a third whenever the device ran out of
    work after a late plan. It shrinks by a thousandth with every other forward: one forward of some
    300 begins late.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        """clock: returns seconds."""
        self._clock = clock
        self._seconds: dict[tuple[int, int], deque[float]] = defaultdict(
            lambda: deque(maxlen=_REMEMBERED)
        )
        self._planning = 0.0
        """Seconds from the start of a plan to its launch: the longest lately, slowly decaying."""
        self._slack = _FIRST_SLACK
        self._due: float | None = None
        self._in_flight: ScheduledForward | None = None

    def launched(self, forward: ScheduledForward, seconds: float) -> None:
        """Record a newly launched forward. seconds: time to plan and launch it."""
        self._planning = max(seconds, self._planning * _DECAY)
        self._in_flight = forward
        self._begin()

    def completed(self, forward: ScheduledForward, busy: float, idle: float, *, late: bool) -> None:
        """Record a completed forward. busy: seconds of computation on the device. idle: seconds
        without work on the device before it. late: True if its plan had waited for new requests."""
        self._seconds[_size(forward)].append(busy)
        if late and idle > max(_LEAST_IDLE, _IDLE_SHARE * busy):
            self._slack = min(_MOST_SLACK, self._slack * _GROWTH)
        else:
            self._slack = max(_LEAST_SLACK, self._slack * _DECAY)
        if forward is self._in_flight:
            self._in_flight = None
        self._begin()

    @property
    def wait(self) -> float:
        """Return the seconds until the next forward should be planned; 0.0: now."""
        return 0.0 if self._due is None else max(0.0, self._due - self._clock())

    def _begin(self) -> None:
        """Set the due time of the next plan: the forward in flight, if any, begins now."""
        self._due = None
        if self._in_flight is None:
            return
        known = self._seconds.get(_size(self._in_flight), ())
        if len(known) >= _KNOWN_FROM:
            self._due = self._clock() + min(known) - self._planning - self._slack


def _size(forward: ScheduledForward) -> tuple[int, int]:
    """Return a key shared by forwards of about the same duration."""
    return len(forward).bit_length(), forward.prompt_tokens.bit_length()


@dataclass(frozen=True)
class LaunchedForward:
    scheduled: ScheduledForward
    in_flight: InFlightForward


class PlanStream:
    """The engine's link to its runner: it sends plans and returns forwards in flight.

    Owns the order of all operations in the arena: forwards, the cache's copies, events. Thread
    rule: the engine loop. Invariant: a copy, or a fold (storing a state after accepted drafts),
    already decided runs before the next launch or recorded event. So a forward never reads bytes
    before they are stored. No other node may read or write a page or slot with a pending copy or
    fold. It gets the id after an event.
    """

    def __init__(
        self,
        runner: Runner,
        cache: HybridPrefixCache,
        progress: ProgressTable,
        ids_before: int = 0,
    ) -> None:
        """progress: the table with the progress of the sequences to launch. ids_before: as in
        ForwardPlanner."""
        self._runner = runner
        self._cache = cache
        self._planner = ForwardPlanner(progress, ids_before)
        self._folds: tuple[Fold, ...] = ()

    @property
    def ticks(self) -> int:
        """Return the value of the step counter after all launched forwards have ended."""
        return self._runner.ticks

    def prepare(self) -> None:
        """Prepare the runner, once, on the launching thread, before the first launch."""
        self._runner.prepare()

    def check_device(self) -> None:
        """Check the device after a failed forward. Raises DeviceLost."""
        self._runner.check_device()

    def launch(self, scheduled: ScheduledForward) -> LaunchedForward:
        """Start the forward. Raises errors found at the launch; then no part of it is in flight."""
        plan = self._planner.plan(scheduled, self._cache.take_copies(), self._take_folds())
        return LaunchedForward(scheduled, self._runner.launch(plan))

    def record_event(self) -> Event:
        """Return an event. It has passed when all launches and all copies decided until now have
        ended."""
        self._store()
        return self._runner.record_event()

    def fold(self, folds: tuple[Fold, ...]) -> None:
        """Store the states of rows with verified drafts, in the next plan. A row continuing with
        drafts stores its state inside its next forward. REQUIRES: the rows are complete; a launch
        or fold_now() comes before the step ends."""
        self._folds += folds

    def fold_now(self) -> None:
        """Store states after accepted drafts now, if no forward of this step has done so."""
        if self._folds:
            self._store()

    def _store(self) -> None:
        copies, folds = self._cache.take_copies(), self._take_folds()
        if copies or folds:
            self._runner.launch(self._planner.stores_alone(copies, folds))

    def _take_folds(self) -> tuple[Fold, ...]:
        folds, self._folds = self._folds, ()
        return folds


class Completion:
    """The handling of a completed forward's sampled tokens for its requests.

    Owns nothing. Thread rule: the engine loop's. Invariant: tokens do not count if their request is
    over or their logits were not finite.
    """

    def __init__(
        self, cache: HybridPrefixCache, plans: PlanStream, scheduler: Scheduler, handover: Handover
    ) -> None:
        self._cache = cache
        self._plans = plans
        self._scheduler = scheduler
        self._handover = handover

    def commit(self, forward: ScheduledForward, all_sampled: SampledTokens) -> None:
        """Record the sampled tokens of a completed forward for its requests; skip requests ended
        since. Reject a request with unsound values."""
        count = len(forward.answers)
        if count:
            self._answers(forward.answers, all_sampled.take(slice(count)))
        if forward.drafted:
            self._drafted(forward.drafted, all_sampled, count)
            count += len(forward.drafted)
        for row, item in enumerate(forward.prompts, count):
            if item.live:
                sampled = all_sampled.at(row) if item.num_sampled else None
                if item.guesses and item.request.drafting is not None:
                    _guessed(item.request.drafting, all_sampled, row, len(item.request.output) + 1)
                self._prompt(item, sampled, all_sampled.scores.get(row))

    def _answers(self, answers: AnswerRows, sampled: SampledTokens) -> None:
        """Record one sampled token of each answer without drafts. Rows of finished requests do not
        count: their tokens come after the end."""
        progress, sound = self._scheduler.progress, sampled.sound
        live = answers.live(progress)
        for request in answers.requests_where(live & ~sound):
            self._handover.reject(request, unsound(request))
        counts = live & sound
        if not counts.all():
            rows = counts.nonzero()[0]
            answers, sampled = answers.take(rows), sampled.take(rows)
        progress.complete_next(answers.batch_indices, answers.tokens)
        self._scheduler.running.acquit(answers.requests)
        self._handover.on_tokens(answers, sampled)

    def _drafted(
        self, drafted: Sequence[ScheduledSequence], sampled: SampledTokens, first: int
    ) -> None:
        """Record the accepted tokens of each row with drafts, up to the answer's end. Skip ended
        requests; reject a request with unsound tokens. first: index in the forward of the first row
        with drafts."""
        counted: list[tuple[ScheduledSequence, list[Sampled]]] = []
        for row, item in enumerate(drafted, first):
            if not item.live:
                continue
            request, found = item.request, sampled.all_at(row)
            tokens = found[: self._handover.until_end(request, found)]
            if not all_sound(tokens):
                self._handover.reject(request, unsound(request))
                continue
            assert request.drafting is not None
            if item.drafts:
                request.drafting.verified(len(item.drafts), min(len(found) - 1, len(tokens)))
            _guessed(request.drafting, sampled, row, len(request.output) + len(tokens))
            item.active.progress.complete_drafted(item.start + len(tokens), item.write_index)
            counted.append((item, tokens))
        folds = tuple(
            Fold(item.batch_index, len(tokens)) for item, tokens in counted if item.drafts
        )
        if folds:
            self._plans.fold(folds)
        self._scheduler.running.acquit([item.request for item, _ in counted])
        for item, tokens in counted:
            for token in tokens:
                self._handover.on_token(item.request, token)

    def _prompt(
        self, item: ScheduledSequence, sampled: Sampled | None, scores: PromptScores | None
    ) -> None:
        """Record the computation of a prompt chunk, its sampled token and its scores; reject the
        request if they are unsound. REQUIRES: its request still runs."""
        request, allocation = item.request, item.active.allocation
        request.suspect = False
        sampled_unsoundly = sampled is not None and not all_sound([sampled])
        if sampled_unsoundly or (scores is not None and not np.isfinite(scores.logprobs).all()):
            self._handover.reject(request, unsound(request))
            return
        item.active.progress.complete(item.stop, item.write_index, item.num_sampled)
        for planned, slot in item.checkpoints:
            self._cache.insert_midway(allocation, planned.position, slot, planned.kind)
        if scores is not None:
            self._handover.on_scores(request, item.start, scores)
        if sampled is not None:
            self._handover.on_token(request, sampled)
        elif item.stop == request.length and not request.sampling.draws:
            self._handover.on_prompt_end(request)


def _guessed(drafting: Drafting, sampled: SampledTokens, row: int, behind: int) -> None:
    """Record the draft layer's proposals for a row of the forward. behind: number of the answer's
    tokens before them."""
    if row in sampled.at_index:
        drafting.left_at_index(sampled.at_index[row], behind)
    else:
        drafting.guessed(sampled.guessed.get(row, ()), behind)
