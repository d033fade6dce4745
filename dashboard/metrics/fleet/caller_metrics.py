"""What each caller was answered: requests that ended, and how long their tokens took.

Borrows its registry; owns the callers of requests in flight. One thread. Invariant: there are at
most MOST_CALLERS + 1 callers among the labels, since a gateway may name any number of tenants.
"""

from collections import OrderedDict

from prometheus_client import CollectorRegistry

from tasuki.dashboard.metrics.instruments import Instruments
from tasuki.dashboard.metrics.life_spans import seconds_per_token
from tasuki.engine.messages import Finished, Rejected, RequestId, Submit

from .target_metrics import TargetMetrics

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
