"""How busy a node is, and how long it computes on a prompt.

Thread rule: one thread at a time.
"""

import math
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class PrefillSeconds:
    """How long a node computes on a part of a prompt.

    fixed: of any prefill; token: of each token; context: of a token for each token before it.
    """

    fixed: float
    token: float
    context: float

    def between(self, first: int, last: int) -> float:
        """Of the tokens first..last, those before them being cached."""
        return self.fixed + self.saved(last) - self.saved(first)

    def saved(self, tokens: int) -> float:
        """What a cached prefix of that many tokens saves."""
        return self.token * tokens + self.context * tokens * tokens / 2


STALE_SECONDS = 30.0
STORED_SECONDS = 600.0
"""After so long a stored prefill counts for 1/e."""


def faded(stored: float, seconds: float) -> float:
    """What seconds of prefill count for whose states were stored so long ago."""
    return stored * math.exp(-seconds / STORED_SECONDS)


class NodeLoad:
    """How busy a node is, as one who sends it prompts can see: what it reported, and what was sent
    to it since.

    Owns no clock: callers bring seconds. Thread rule: one thread at a time. Invariants: what is
    sent counts at once, and until a report that was taken after it; a wait falls with the time that
    passes; without a report for STALE_SECONDS only what was sent counts.
    """

    def __init__(self) -> None:
        self._reported = 0.0
        self._reported_at = -math.inf
        self._sent: deque[tuple[float, float]] = deque()  # when, seconds of work
        self._own_ends = 0.0
        self._stored = 0.0
        self._stored_at = 0.0

    def report(self, wait: float, at: float, stored: float | None = None) -> None:
        """wait: seconds of work that the node had at `at`; reports follow in order. stored: seconds
        of prefill whose states it stored, whoever sent them, as stored() counts them; None where it
        does not say."""
        self._reported, self._reported_at = wait, at
        while self._sent and self._sent[0][0] <= at:
            self._sent.popleft()
        if stored is not None:
            since = sum(work for _, work in self._sent)
            self._stored, self._stored_at = stored + since, at

    def send(self, work: float, at: float) -> None:
        """A prompt of so many seconds of prefill, whose states the node then stores."""
        self._sent.append((at, work))
        while self._sent[0][0] < at - STALE_SECONDS:
            self._sent.popleft()
        self._own_ends = max(self._own_ends, at) + work
        self._stored, self._stored_at = self.stored(at) + work, at

    def wait(self, now: float) -> float:
        """Seconds until a prompt that is sent now would begin."""
        if now - self._reported_at > STALE_SECONDS:
            return max(0.0, self._own_ends - now)
        ends = self._reported_at + self._reported
        for at, work in self._sent:
            ends = max(ends, at) + work
        return max(0.0, ends - now)

    def stored(self, now: float) -> float:
        """Seconds of prefill whose states were stored, older ones counting less."""
        return faded(self._stored, now - self._stored_at)
