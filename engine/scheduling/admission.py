"""Admission: how many requests may run, how long they may wait, which are refused at once.

Owns measured times and the counts of what was refused. Thread rule: the engine loop's.
"""

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
"""So many times the rows that were seen are expected at most."""


class StepOutlook:
    """How long a step of so many answers takes, by what the last ones took.

    Knows rows and seconds, no requests. Thread rule: the engine loop's. Invariants: a step of more
    rows is never expected to be shorter; what a newer step contradicts is forgotten, so that
    answers whose contexts grow are seen; one slow step alone shows nothing where the one before it
    had as many rows.
    """

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._seconds: list[float] = []
        """Of a step of so many; both rise."""
        self._last = 0, 0.0

    def landed(self, rows: int, seconds: float) -> None:
        """A step of nothing but so many answers, at least one, took so long."""
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
        """None before the first step. Of more rows than were seen: as the steps seen rise, and not
        at all while those were all alike."""
        return self._expected(rows) if self._rows else None

    def fitting(self, seconds: float) -> int:
        """The most rows whose step is expected to take no longer; at least one."""
        if not self._rows:
            return 1
        within = range(1, _GROWTH * self._rows[-1] + 1)
        return max(1, bisect_right(within, seconds, key=self._expected))

    def _expected(self, rows: int) -> float:
        """REQUIRES: a step has landed."""
        place = bisect_left(self._rows, rows)
        if place == 0:
            return self._seconds[0] * rows / self._rows[0]
        low, high = (0, -1) if place == len(self._rows) else (place - 1, place)
        wide = self._rows[high] - self._rows[low]
        each = (self._seconds[high] - self._seconds[low]) / wide if wide else 0.0
        return self._seconds[high] + each * (rows - self._rows[high])


_SEATS_A_PLACE = 8
"""For so many seats one place more: about that share of a full batch's answers end while a prompt
is computed and sent, and their rows would be empty until then."""


class Seats:
    """How many requests may run beside each other.

    With a target for the time between two tokens: as many as a step has time for, found by
    doubling. One target for all, the node's own: any that a request could name would let it keep
    others out, or let others in to whom it was promised otherwise. Thread rule: the engine loop's.
    """

    def __init__(self, rows: int, per_token: float | None) -> None:
        """rows: of a forward, at most. per_token: seconds of a step; None: however long it
        takes."""
        self.steps = StepOutlook()
        self._rows = rows
        self._per_token = per_token

    @property
    def count(self) -> int:
        """Of requests that run. More may run already: none is ever sent away."""
        if self._per_token is None:
            return self._rows
        return min(self._rows, self.steps.fitting(self._per_token))

    @property
    def places(self) -> int:
        """The same, with those whose prompts are computed elsewhere."""
        if self._per_token is None:
            return self._rows + -(-self._rows // _SEATS_A_PLACE)
        return self.count


class QueueLimit:
    """How long a request may wait in the engine's queue before its prompt is begun, and when its
    first token is due.

    Owns no queue: its owner reports who enters one. Thread rule: the engine's thread. Invariant:
    looking costs nothing while nobody can be due, and else what those cost who are, however many
    wait and however many different times they name.
    """

    def __init__(self, seconds: float, clock: Clock = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._times: list[tuple[float, int, ReferenceType[Request]]] = []
        """A heap; also of those who wait no longer, whose prompts it does not keep."""
        self._numbers = count()

    def entered(self, request: Request) -> None:
        """Its time begins: whoever comes back from another node's queue waits anew in this one, but
        never longer than its client does."""
        now, targets = self._clock(), request.targets
        if request.deadline is None:
            patience = request.patience if targets.answer is None else targets.answer
            request.deadline = now + min(request.patience, patience)
            if targets.first_token is not None:
                request.first_due = now + targets.first_token
        request.queued_at = now
        request.due = min(now + self.seconds, request.deadline)
        # A first token that is due later is of no consequence: the wait is over before. So nothing
        # is kept for longer than somebody may wait here, whatever a client names.
        for at in {request.due, request.first_due}:
            if at < math.inf and at <= request.due:
                heappush(self._times, (at, next(self._numbers), ref(request)))

    def seconds_left(self, request: Request) -> float:
        """Until its first token is due; infinite where nobody said when, or nobody waits for it."""
        return math.inf if request.output else request.first_due - self._clock()

    @property
    def idle_seconds(self) -> float | None:
        """How long nobody needs to look; None: until somebody enters."""
        return max(0.0, self._times[0][0] - self._clock()) if self._times else None

    def passed(self, waiting: Container[Request]) -> list[Request]:
        """Those of the queue for whom something has become due: they have waited too long, or past
        the time of their first token. Whoever was begun once, and gave way since, is never among
        them."""
        now = self._clock()
        passed: dict[Request, None] = {}
        while self._times and self._times[0][0] <= now:
            request = heappop(self._times)[-1]()
            if request is None or request.begun or request not in waiting:
                continue
            # Its time may have begun anew since.
            if request.ordered_by <= now:
                passed[request] = None
        return [*passed]

    def is_over(self, request: Request) -> bool:
        """Whether it has waited too long."""
        return request.due <= self._clock()


_WINDOW_SECONDS = 5.0
"""Of work: while no prompt waits, no time passes."""
_WINDOWS = 12


class FirstTokenOutlook:
    """When a prompt that comes now would have its first token, by how fast first tokens came while
    prompts waited for theirs.

    Owns the prompts of which no token is out; asks neither queue nor cache, so that it holds
    wherever prompts are computed. Thread rule: the engine loop's. Invariants:
    1. A prompt counts whole, whatever of it is cached: those that come are like those that came.
    2. The speed is that of the best of the last windows of work, so that nobody is refused because
       nobody asked for more. Nothing is expected before a whole window of work has been seen.
    3. A caller waits for its own prompts that are as urgent and for which something is due no
       later, and for no more of another's than of its own: callers take turns. What other nodes
       have sent to where prompts are computed is another's.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._waiting: dict[Request, None] = {}
        self._speeds: deque[float] = deque(maxlen=_WINDOWS)
        """Prompt tokens a second, a window each."""
        self._worked = 0.0
        self._answered = 0
        self._looked_at = 0.0

    def entered(self, request: Request) -> None:
        self._pass_time()
        self._waiting[request] = None

    def left(self, request: Request, *, answered: bool) -> None:
        """answered: its first token is out; else it will have none. Idempotent."""
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
        """Until the first token of one that comes now; None where nothing is expected, or nobody
        waits. within: seconds in which it is due. elsewhere: seconds of others' work before it
        on every node that could compute its prompt."""
        if not self._speeds or not (self._waiting or elsewhere):
            return None
        speed = max(self._speeds)
        before = self._before(request, self._clock() + within, elsewhere * speed)
        return (before + len(request.prompt)) / speed

    def _before(self, request: Request, due: float, elsewhere: float) -> float:
        """Prompt tokens that have their turn first."""
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
    """In a line of one caller."""
    if other.priority != request.priority:
        return other.priority < request.priority
    # Of one that is late already nothing is due any more.
    return (other.ordered_by if other.first_due > now else other.due) <= due


SecondsElsewhere = Callable[[Request], float]
"""Returns the seconds of others' work before a request, as of FirstTokenOutlook.seconds."""


class EarlyRefusal:
    """Why a request is not worth beginning: it would not be answered within what it is wanted in.

    Looks at those who wait and run, and changes nothing. Thread rule: the engine loop's.
    Invariants:
    only who has just come is refused, never who was taken; where nobody waits a request is always
    taken. What nothing is known of is no reason.
    """

    def __init__(self, own: m.Targets, outlook: FirstTokenOutlook, seats: Seats) -> None:
        """own: the node's, of requests that name none."""
        self._own = own
        self._outlook = outlook
        self._seats = seats

    def targets(self, asked: m.Targets) -> m.Targets:
        """What holds for a request that asks for these."""
        return asked.or_else(self._own)

    def reason(
        self,
        request: Request,
        others: Collection[Request],
        elsewhere: SecondsElsewhere,
    ) -> m.RequestError | None:
        """others: all that are not over. elsewhere: as of FirstTokenOutlook.seconds."""
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
        """Whether its tokens would come too slowly beside all that are here."""
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
"""Of one decode node: as many as begin in the time that a grant takes, and no more, since each of
them holds a slot."""
MOST_PULLED = 32
"""Likewise: a pull waits for the forward in flight, and is over within the next one or two."""
_WINDOW_SHARE = 4
"""Their prompts together are at most this part of what fits; one is always allowed."""


class AcceptWindow:
    """Rooms that hold memory on a prefill node though nothing of them is computed yet: those that
    are accepted, and those whose beginning is pulled.

    Owns the count of one kind of them by decode node, and how many there may be. Knows no queue
    and no cache. Thread rule: the engine loop's. Invariant: a decode node that grants nothing
    keeps no more than its share of the memory.
    """

    def __init__(self, capacity_tokens: int, most: int) -> None:
        """capacity_tokens: that the cache can hold of one prompt. most: rooms of a decode node."""
        self._most = most
        self._share = capacity_tokens // _WINDOW_SHARE
        self._ahead: dict[str, dict[m.RoomId, int]] = {}
        self.left = 0
        """Rooms that were in the window and are not any more: grows when others may enter."""

    def has_room(self, peer: str, tokens: int) -> bool:
        """Whether a prompt of so many tokens may be leased for the decode node."""
        ahead = self._ahead.get(peer)
        if not ahead:
            return True
        return len(ahead) < self._most and sum(ahead.values()) + tokens <= self._share

    def enter(self, peer: str, room: m.RoomId, tokens: int) -> None:
        self._ahead.setdefault(peer, {})[room] = tokens

    def leave(self, peer: str, room: m.RoomId) -> None:
        """A forward of the room is planned, its pull is over, or there will be neither.
        Idempotent."""
        ahead = self._ahead.get(peer, {})
        if ahead.pop(room, None) is None:
            return
        self.left += 1
        if not ahead:
            del self._ahead[peer]
