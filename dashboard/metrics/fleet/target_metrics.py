"""Requests that were to be answered within a time: kept, missed or refused.

One thread. Invariant: a request that nobody wanted within any time is counted nowhere.
"""

from tasuki.dashboard.metrics.instruments import Instruments
from tasuki.dashboard.metrics.life_spans import missed_targets
from tasuki.engine.messages import ErrorKind, Finished, FinishReason, Rejected


class TargetMetrics:
    def __init__(self, made: Instruments) -> None:
        self._requests = made.counter(
            "target_requests",
            "Requests that were wanted within targets, by urgency (priority below 0: urgent; 0: "
            "usual; above: later) and outcome: kept, missed, or refused before they began.",
            "urgency",
            "outcome",
        )
        self._by_caller = made.counter(
            "caller_target_requests",
            "Requests that were wanted within targets, by caller and outcome.",
            "caller",
            "outcome",
        )
        self._missed = made.counter(
            "targets_missed",
            "Targets that answers missed: first_token, per_token or answer; a request may miss "
            "several.",
            "target",
        )

    def observe(self, message: Finished | Rejected, caller: str, priority: int) -> None:
        match message:
            case Finished(usage=usage, reason=reason) if usage.targets is not None:
                missed = missed_targets(usage)
                for target in missed:
                    self._missed.labels(target).inc()
                # Of an answer that nobody waited for nothing is known but what it had missed.
                if missed or reason is not FinishReason.ABORT:
                    self._count("missed" if missed else "kept", caller, priority)
            case Rejected(error=error, targets=targets) if targets is not None:
                if error.kind is ErrorKind.OVERLOADED:
                    self._count("refused", caller, priority)
                elif error.kind is ErrorKind.QUEUE_TIMEOUT:
                    self._count("missed", caller, priority)

    def _count(self, outcome: str, caller: str, priority: int) -> None:
        self._requests.labels(_urgency(priority), outcome).inc()
        if caller:
            self._by_caller.labels(caller, outcome).inc()


def _urgency(priority: int) -> str:
    if priority == 0:
        return "usual"
    return "urgent" if priority < 0 else "later"
