"""Counters of the prefixes that a prefill node pulled from decode nodes instead of computing them.

Owns no registry but the one it is given. One thread.
"""

from prometheus_client import CollectorRegistry

from tasuki.engine.messages import PullCommitted, PullLost

from .families import PREFILL
from .instruments import Instruments

_COMMITTED, _LOST = "committed", "lost"


class PullMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        made = Instruments(registry)
        self._pulls = made.counter(
            "pulls",
            "Pulls of a prompt's beginning from the node that asked, by outcome.",
            "outcome",
        )
        for outcome in (_COMMITTED, _LOST):
            self._pulls.labels(outcome)
        self._tokens = made.counter("pulled_tokens", "Prompt tokens that pulls brought.")
        self._bytes = made.counter("pulled_bytes", "Bytes that pulls brought.")
        self._seconds = made.seconds("pull", "From the ask for a pull to its commit.", PREFILL)

    def observe(self, message: PullCommitted | PullLost) -> None:
        if isinstance(message, PullLost):
            self._pulls.labels(_LOST).inc()
            return
        self._pulls.labels(_COMMITTED).inc()
        self._tokens.inc(message.report.tokens)
        self._bytes.inc(message.report.bytes)
        self._seconds.observe(message.report.seconds)
