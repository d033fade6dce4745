"""Metrics of callers and targets: ended requests, seconds of their tokens, targets kept or missed.

CallerMetrics borrows its registry, and owns the callers of requests in flight. One thread.
Invariant: the labels name at most MOST_CALLERS + 1 callers, since a gateway may name any number of
tenants.

TargetMetrics counts the requests with targets: kept, missed or refused. One thread. Invariant: a
request without a target is counted nowhere.
"""

from collections import OrderedDict

from prometheus_client import CollectorRegistry

from tasuki.engine.messages import ErrorKind, Finished, FinishReason, Rejected, RequestId, Submit

from .families import Instruments
from .request_metrics import missed_targets, seconds_per_token

MOST_CALLERS = 64
OTHERS = "(others)"
"""All callers after the first MOST_CALLERS; no caller's own name has a bracket."""

# As few bounds as show whether a target is kept: there is a series of each for each caller.
_FIRST_TOKEN = (0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_TOKEN = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
_IN_FLIGHT = 1 << 16


class CallerMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        made = Instruments(registry)
        self._ended = made.counter(
            "caller_requests_finished",
            f"Requests that ended, by the key's or the tenant's name; those after the first "
            f"{MOST_CALLERS} are {OTHERS}.",
            "caller",
        )
        self._first_token = made.seconds(
            "caller_time_to_first_token",
            "From arrival to the first token, by caller.",
            _FIRST_TOKEN,
            "caller",
        )
        self._per_token = made.seconds(
            "caller_time_per_output_token",
            "Mean over a request's tokens after the first, by caller.",
            _TOKEN,
            "caller",
        )
        self._targets = TargetMetrics(made)
        self._named: set[str] = set()
        self._callers: OrderedDict[RequestId, tuple[str, int]] = OrderedDict()
        """With the request's priority."""

    def observe(self, message: Submit | Finished | Rejected) -> None:
        match message:
            case Submit(caller=caller, priority=priority):
                for request in message.answer_ids:
                    self._callers[request] = self._label(caller), priority
                while len(self._callers) > _IN_FLIGHT:
                    self._callers.popitem(last=False)
            case Rejected(request_id=request):
                self._targets.observe(message, *self._callers.pop(request, ("", 0)))
            case Finished(request_id=request):
                caller, priority = self._callers.pop(request, ("", 0))
                self._targets.observe(message, caller, priority)
                if caller:
                    self._observe_end(caller, message)

    def _observe_end(self, caller: str, ended: Finished) -> None:
        usage = ended.usage
        self._ended.labels(caller).inc()
        if usage.completion_tokens:
            self._first_token.labels(caller).observe(usage.time_to_first_token)
        per_token = seconds_per_token(usage)
        if per_token is not None:
            self._per_token.labels(caller).observe(per_token)

    def _label(self, caller: str) -> str:
        if caller and caller not in self._named:
            if len(self._named) >= MOST_CALLERS:
                return OTHERS
            self._named.add(caller)
        return caller


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
