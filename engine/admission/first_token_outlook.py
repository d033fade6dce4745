"""When a prompt that comes now would have its first token, by how fast first tokens came while
prompts waited for theirs.

Owns the prompts of which no token is out; asks neither queue nor cache, so that it holds wherever
prompts are computed. Thread rule: the engine loop's.
Invariants:
1. A prompt counts whole, whatever of it is cached: those that come are like those that came.
2. The speed is that of the best of the last windows of work, so that nobody is refused because
   nobody asked for more. Nothing is expected before a whole window of work has been seen.
3. A caller waits for its own prompts that are as urgent and for which something is due no later,
   and for no more of another's than of its own: callers take turns. What other nodes have sent to
   where prompts are computed is another's.
"""

import math
import time
from collections import deque
from collections.abc import Callable

from tasuki.engine.request import Request

_WINDOW_SECONDS = 5.0
"""Of work: while no prompt waits, no time passes."""
_WINDOWS = 12


class FirstTokenOutlook:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
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
