"""Prefill chunks: how many prompt tokens a forward takes, and whose they are.

Owns the measured times of forwards. Thread rule: the engine loop's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tasuki.pycache.layout import PAGE_TOKENS

from .scheduled_forward import ScheduledForward

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
