"""Admission: the number of running requests, their longest wait, and the refusal of late ones."""

import math
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection, Container
from heapq import heappop, heappush
from itertools import count
from weakref import ReferenceType, ref

from tasuki.engine import messages as m
from tasuki.engine.request import Request
from tasuki.utils.signatures import Clock

_GROWTH = 2
"""Limit for fitting(): this factor times the largest measured number of rows."""


class StepOutlook:
    """An estimate of a step's duration by its number of answers, from recent steps.

    Knows rows and seconds, no requests. Thread rule: the engine loop's. Invariants: a step of more
    rows is never expected to be shorter. Measurements contradicted by a newer step are forgotten,
    because contexts of answers grow. If two steps in a row have equal rows, the shorter one counts,
    so one slow step changes nothing.
    """

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._seconds: list[float] = []
        """Measured seconds of a step with the number of rows at the same index of _rows. Both lists
        rise."""
        self._last = 0, 0.0

    def completed(self, rows: int, seconds: float) -> None:
        """Record a decode-only step. rows: its answers, at least one. seconds: its duration."""
        before, self._last = self._last, (rows, seconds)
        if before[0] == rows:
            seconds = min(seconds, before[1])
        first = last = bisect_left(self._rows, rows)
        while first and self._seconds[first - 1] >= seconds:
            first -= 1
        while last < len(self._rows) and (
            self._rows[last] == rows or self._seconds[last] <= seconds
        ):
            last += 1
        self._rows[first:last], self._seconds[first:last] = [rows], [seconds]

    def seconds(self, rows: int) -> float | None:
        """Return the expected seconds of a step with `rows` answers; None before the first step.
        Above the measured row counts the value is extrapolated; with only one measured row count it
        stays constant."""
        return self._expected(rows) if self._rows else None

    def fitting(self, seconds: float) -> int:
        """Return the largest number of rows in a step expected to take at most `seconds`; at least
        one."""
        if not self._rows:
            return 1
        within = range(1, _GROWTH * self._rows[-1] + 1)
        return max(1, bisect_right(within, seconds, key=self._expected))

    def _expected(self, rows: int) -> float:
        """Return the expected seconds of a step of `rows` rows. REQUIRES: a step was recorded."""
        place = bisect_left(self._rows, rows)
        if place == 0:
            return self._seconds[0] * rows / self._rows[0]
        low, high = (0, -1) if place == len(self._rows) else (place - 1, place)
        wide = self._rows[high] - self._rows[low]
        each = (self._seconds[high] - self._seconds[low]) / wide if wide else 0.0
        return self._seconds[high] + each * (rows - self._rows[high])


_SEATS_A_PLACE = 8
"""Number of batch seats for each extra request admitted while its prompt is computed elsewhere.
About this share of a full batch ends while a prompt is computed and sent; its rows would be empty
until then."""


class Seats:
    """The number of requests allowed to run at the same time (seats of the batch).

    With a target time between two tokens: as many as fit into a step, found by doubling. The node
    has one target for all requests. If a request named its own target, it could keep others out, or
    break promises made to others. Thread rule: the engine loop's.
    """

    def __init__(self, rows: int, per_token: float | None) -> None:
        """rows: most rows of a forward. per_token: longest step in seconds; None: no limit."""
        self.steps = StepOutlook()
        self._rows = rows
        self._per_token = per_token

    @property
    def count(self) -> int:
        """Number of requests allowed to run at a time. If more run, none is removed."""
        if self._per_token is None:
            return self._rows
        return min(self._rows, self.steps.fitting(self._per_token))

    @property
    def places(self) -> int:
        """Return the number of requests allowed to run, or be computed on another node."""
        if self._per_token is None:
            return self._rows + -(-self._rows // _SEATS_A_PLACE)
        return self.count


class QueueLimit:
    """The time limits of the engine's queue: a request's longest wait, and the due time of its
    first token.

    Owns no queue: the queue's owner reports each entry. Thread rule: the engine's thread.
    Invariant: a check costs nothing while no request is due. Otherwise it costs as much as the
    number of due requests.
    """

    def __init__(self, seconds: float, clock: Clock = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._times: list[tuple[float, int, ReferenceType[Request]]] = []
        """A heap of due times: (time, sequence number, request). Entries of requests no longer
        waiting remain, by weak reference."""
        self._numbers = count()

    def entered(self, request: Request) -> None:
        """Start the request's wait in the queue. A request returned from another node's queue
        starts a new wait, but never waits longer than its client does."""
        now, targets = self._clock(), request.targets
        if request.deadline is None:
            patience = request.patience if targets.answer is None else targets.answer
            request.deadline = now + min(request.patience, patience)
            if targets.first_token is not None:
                request.first_due = now + targets.first_token
        request.queued_at = now
        request.due = min(now + self.seconds, request.deadline)
        # A later first token has no effect, because the wait ends before it. So no time is kept for
        # longer than the longest wait here, even if a client names a later one.
        for at in {request.due, request.first_due}:
            if at < math.inf and at <= request.due:
                heappush(self._times, (at, next(self._numbers), ref(request)))

    def seconds_left(self, request: Request) -> float:
        """Return the seconds until the request's first token is due; infinite without a due time or
        after its first token."""
        return math.inf if request.output else request.first_due - self._clock()

    @property
    def idle_seconds(self) -> float | None:
        """Seconds until the next check of due times is needed; None: none without a request."""
        return max(0.0, self._times[0][0] - self._clock()) if self._times else None

    def passed(self, waiting: Container[Request]) -> list[Request]:
        """Return the waiting requests with a passed limit: the longest wait, or the due time of the
        first token. A request begun once and preempted since is never among them."""
        now = self._clock()
        passed: dict[Request, None] = {}
        while self._times and self._times[0][0] <= now:
            request = heappop(self._times)[-1]()
            if request is None or request.begun or request not in waiting:
                continue
            # Its wait may have begun again since.
            if request.ordered_by <= now:
                passed[request] = None
        return [*passed]

    def is_over(self, request: Request) -> bool:
        """Return True if the request's longest wait is over."""
        return request.due <= self._clock()


_WINDOW_SECONDS = 5.0
"""Seconds of work in one measuring window: time counts only while a prompt waits."""
_WINDOWS = 12


class FirstTokenOutlook:
    """An estimate of a new prompt's time to first token, from the recent rate of first tokens while
    prompts waited.

    Owns the set of prompts without a first token. Asks neither queue nor cache, so it holds
    wherever prompts are computed. Thread rule: the engine loop's.

    Invariants:
    1. A prompt counts with all its tokens, cached ones too: new prompts are like past ones.
    2. The speed is the best of the last measuring windows, so low demand refuses no request.
       Nothing is expected before the end of the first window.
    3. A new prompt waits for its caller's prompts of equal or higher urgency and no later due time.
       It waits for no more tokens of another caller than of its own, because callers are served in
       turn. Work sent by other nodes to the computing nodes counts as another caller's.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._waiting: dict[Request, None] = {}
        self._speeds: deque[float] = deque(maxlen=_WINDOWS)
        """Prompt tokens per second, one value for each measuring window."""
        self._worked = 0.0
        self._answered = 0
        self._looked_at = 0.0

    def entered(self, request: Request) -> None:
        self._pass_time()
        self._waiting[request] = None

    def left(self, request: Request, *, answered: bool) -> None:
        """Forget a prompt. answered: True if its first token was emitted; False if it will have
        none. Idempotent."""
        if request not in self._waiting:
            return
        self._pass_time()
        del self._waiting[request]
        if not answered:
            return
        self._answered += len(request.prompt)
        if self._worked >= _WINDOW_SECONDS:
            self._speeds.append(self._answered / self._worked)
            self._worked, self._answered = 0.0, 0

    def seconds(
        self, request: Request, within: float = math.inf, elsewhere: float = 0.0
    ) -> float | None:
        """Return the expected seconds until a new prompt's first token; None without an estimate or
        without a queue. within: seconds until the first token is due. elsewhere: seconds of other
        nodes' work queued before it, at the prefill node with the least."""
        if not self._speeds or not (self._waiting or elsewhere):
            return None
        speed = max(self._speeds)
        before = self._before(request, self._clock() + within, elsewhere * speed)
        return (before + len(request.prompt)) / speed

    def _before(self, request: Request, due: float, elsewhere: float) -> float:
        """Return the number of prompt tokens to be computed before the new request's. due: due time
        of its first token. elsewhere: prompt tokens of other nodes queued before it."""
        now = self._clock()
        tokens: dict[str, int] = {}
        for other in self._waiting:
            if other.caller != request.caller or _comes_first(other, request, due, now):
                tokens[other.caller] = tokens.get(other.caller, 0) + len(other.prompt)
        own = tokens.pop(request.caller, 0)
        turn = own + len(request.prompt)
        return own + sum(min(theirs, turn) for theirs in (elsewhere, *tokens.values()))

    def _pass_time(self) -> None:
        now = self._clock()
        if self._waiting:
            self._worked += now - self._looked_at
        self._looked_at = now


def _comes_first(other: Request, request: Request, due: float, now: float) -> bool:
    """Return True if `other` is computed before `request`, both of the same caller. due: due time
    of the request's first token. now: the current time."""
    if other.priority != request.priority:
        return other.priority < request.priority
    # A request that missed its first token's time counts by the end of its wait.
    return (other.ordered_by if other.first_due > now else other.due) <= due


SecondsElsewhere = Callable[[Request], float]
"""A function to return the seconds of other nodes' work queued before a request, as in
FirstTokenOutlook.seconds()."""


class EarlyRefusal:
    """The early refusal of new requests expected to miss their targets (time limits).

    Reads waiting and running requests, and changes nothing. Thread rule: the engine loop's.
    Invariants: only a new request is refused, never an accepted one. If no request waits, a request
    is always accepted. Without an estimate no request is refused.
    """

    def __init__(self, own: m.Targets, outlook: FirstTokenOutlook, seats: Seats) -> None:
        """own: the node's time limits, used for each limit a request does not set. outlook:
        estimates the time to first token. seats: estimates the time per token."""
        self._own = own
        self._outlook = outlook
        self._seats = seats

    def targets(self, asked: m.Targets) -> m.Targets:
        """Return a request's effective time limits: its own ones, and the node's for unset ones."""
        return asked.or_else(self._own)

    def reason(
        self, request: Request, others: Collection[Request], elsewhere: SecondsElsewhere
    ) -> m.RequestError | None:
        """Return the error to refuse the request with; None to accept it. others: all requests not
        yet over. elsewhere: returns seconds of other nodes' work, as in
        FirstTokenOutlook.seconds()."""
        return self._late(request, elsewhere) or self._slow(request, others)

    def _late(self, request: Request, elsewhere: SecondsElsewhere) -> m.RequestError | None:
        limit, name = min(
            (_or_never(request.targets.first_token), "its target"),
            (_or_never(request.targets.answer), "its target for the whole answer"),
            (request.patience, "its call's deadline"),
        )
        if limit == math.inf:
            return None
        expected = self._outlook.seconds(request, limit, elsewhere(request))
        if expected is None or expected <= limit:
            return None
        return _refusal(
            f"its first token is expected in {expected:.1f} s, {name} is {limit:g} s",
            expected - limit,
        )

    def _slow(self, request: Request, others: Collection[Request]) -> m.RequestError | None:
        """Return an error if the request's tokens would come more slowly than its target, together
        with all present requests."""
        target = request.targets.per_token
        if target is None or not others:
            return None
        steps = self._seats.steps
        expected = steps.seconds(min(len(others) + 1, self._seats.count))
        if expected is None or expected <= target:
            return None
        left = sorted(other.tokens_left for other in others)
        ending = min(len(left), len(left) + 1 - steps.fitting(target))
        return _refusal(
            f"a token is expected every {1000 * expected:.1f} ms, its target is "
            f"{1000 * target:g} ms",
            left[ending - 1] * expected,
        )


def _or_never(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


def _refusal(why: str, retry_after: float) -> m.RequestError:
    return m.RequestError(
        m.ErrorKind.OVERLOADED,
        f"{why}: ask again in {retry_after:.1f} s, or at another node",
        retry_after=retry_after,
    )


MOST_ACCEPTED = 16
"""Most accepted transfers of one decode node at a time. It suffices for the transfers begun during
the round trip for a destination. It is not larger, because each transfer holds a slot."""
MOST_PULLED = 32
"""Most transfers with a pull of one decode node at a time. A pull waits for the forward in flight,
and is over within the next one or two."""
_WINDOW_SHARE = 4
"""Prompts of one accept window together use at most 1 / this value of the cache's capacity; one
prompt is always allowed."""


class AcceptWindow:
    """A limit on the transfers holding memory on a node before any computation, by the other node.
    One window counts one kind of transfers: accepted ones, ones with a pull, or fetches.

    Knows no queue and no cache. Thread rule: the engine loop's. Invariant: a peer that never grants
    a destination holds at most its share of the memory.
    """

    def __init__(self, capacity_tokens: int, most: int) -> None:
        """capacity_tokens: the cache's capacity for one prompt, in tokens. most: largest number of
        transfers for one peer."""
        self._most = most
        self._share = capacity_tokens // _WINDOW_SHARE
        self._ahead: dict[str, dict[m.TransferId, int]] = {}
        self.left = 0
        """Count of transfers removed so far; a change means others may enter."""

    def has_room(self, peer: str, tokens: int) -> bool:
        """Return True if a prompt of `tokens` tokens may get memory for the node `peer`."""
        ahead = self._ahead.get(peer)
        if not ahead:
            return True
        return len(ahead) < self._most and sum(ahead.values()) + tokens <= self._share

    def enter(self, peer: str, transfer_id: m.TransferId, tokens: int) -> None:
        self._ahead.setdefault(peer, {})[transfer_id] = tokens

    def leave(self, peer: str, transfer_id: m.TransferId) -> None:
        """Remove a transfer from the window: its forward is planned, its pull is over, or neither
        will happen. Idempotent."""
        ahead = self._ahead.get(peer, {})
        if ahead.pop(transfer_id, None) is None:
            return
        self.left += 1
        if not ahead:
            del self._ahead[peer]
