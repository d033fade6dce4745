"""Load of a prefill node, and its computing time for a prompt.

Thread rule: one thread at a time.
"""

import math
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class PrefillSeconds:
    """Computing time of a prefill, in seconds, by its tokens.

    fixed: for any prefill. token: for each token. context: for each pair of a token and a token
    before it.
    """

    fixed: float
    token: float
    context: float

    def between(self, first: int, last: int) -> float:
        """Return the seconds of prefill for the tokens from `first` to `last` of a prompt, with the
        tokens before `first` cached."""
        return self.fixed + self.saved(last) - self.saved(first)

    def saved(self, tokens: int) -> float:
        """Return the seconds of prefill saved by a cached prefix of `tokens` tokens."""
        return self.token * tokens + self.context * tokens * tokens / 2


STALE_SECONDS = 30.0
STORED_SECONDS = 600.0
"""Time constant in seconds: a prefill stored so long ago counts for 1/e of its seconds."""


def faded(stored: float, seconds: float) -> float:
    """Return the present weight of `stored` seconds of prefill, stored as states `seconds` ago."""
    return stored * math.exp(-seconds / STORED_SECONDS)


class NodeLoad:
    """Load of a prefill node as estimated by a sender of prompts: from the node's reports, and the
    prompts sent since.

    Owns no clock: callers pass seconds. Thread rule: one thread at a time. Invariants: a sent
    prompt counts immediately, until a report made after it. A wait falls as time passes. Without a
    report for STALE_SECONDS only sent prompts count.
    """

    def __init__(self) -> None:
        self._reported = 0.0
        self._reported_at = -math.inf
        self._sent: deque[tuple[float, float]] = deque()  # time, seconds of work
        self._own_ends = 0.0
        self._stored = 0.0
        self._stored_at = 0.0

    def report(self, wait: float, at: float, stored: float | None = None) -> None:
        """Record a report of the node. wait: seconds of its waiting work at time `at`; reports come
        in order. stored: seconds of prefill it stored as states, for all senders, older ones
        weighted less; None if unknown."""
        self._reported, self._reported_at = wait, at
        while self._sent and self._sent[0][0] <= at:
            self._sent.popleft()
        if stored is not None:
            since = sum(work for _, work in self._sent)
            self._stored, self._stored_at = stored + since, at

    def send(self, work: float, at: float) -> None:
        """Record a prompt sent at time `at`. work: its seconds of prefill; the node then stores the
        prompt's states."""
        self._sent.append((at, work))
        while self._sent[0][0] < at - STALE_SECONDS:
            self._sent.popleft()
        self._own_ends = max(self._own_ends, at) + work
        self._stored, self._stored_at = self.stored(at) + work, at

    def wait(self, now: float) -> float:
        """Return the estimated seconds until the node would begin a prompt sent now. Without a
        recent report only the prompts sent here count."""
        if now - self._reported_at > STALE_SECONDS:
            return max(0.0, self._own_ends - now)
        ends = self._reported_at + self._reported
        for at, work in self._sent:
            ends = max(ends, at) + work
        return max(0.0, ends - now)

    def stored(self, now: float) -> float:
        """Return the seconds of prefill the node has stored as states, older ones weighted less."""
        return faded(self._stored, now - self._stored_at)
