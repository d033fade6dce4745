"""Counters of the prefixes that a prefill node pulled from decode nodes instead of computing them.

Owns no registry but the one it is given. One thread.
"""

from prometheus_client import CollectorRegistry, Counter, Histogram
from tasuki.engine.messages import PullCommitted, PullLost

from .families import PREFILL

_COMMITTED, _LOST = "committed", "lost"


class PullMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._pulls = Counter(
            "tasuki_pulls",
            "Pulls of a prompt's beginning from the node that asked, by outcome.",
            ["outcome"],
            registry=registry,
        )
        for outcome in (_COMMITTED, _LOST):
            self._pulls.labels(outcome)
        self._tokens = Counter(
            "tasuki_pulled_tokens", "Prompt tokens that pulls brought.", registry=registry
        )
        self._bytes = Counter("tasuki_pulled_bytes", "Bytes that pulls brought.", registry=registry)
        self._seconds = Histogram(
            "tasuki_pull_seconds",
            "From the ask for a pull to its commit.",
            buckets=PREFILL,
            registry=registry,
        )

    def observe(self, message: PullCommitted | PullLost) -> None:
        if isinstance(message, PullLost):
            self._pulls.labels(_LOST).inc()
            return
        self._pulls.labels(_COMMITTED).inc()
        self._tokens.inc(message.report.tokens)
        self._bytes.inc(message.report.bytes)
        self._seconds.observe(message.report.seconds)
