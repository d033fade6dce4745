"""A server's metrics by the names of OpenTelemetry's GenAI conventions, version 1.41.1, as
Prometheus spells them: gen_ai.server.request.duration and the two beside it.

Borrows its registry; owns the operations of requests in flight. One thread. The bounds of the
histograms are the conventions'.
"""

from collections import OrderedDict

from prometheus_client import CollectorRegistry, Histogram

from tasuki.dashboard.metrics.life_spans import seconds_per_token
from tasuki.engine.messages import Finished, FinishReason, Rejected, RequestId

GEN_AI = "gen_ai"
"""The dialect's name."""
METRICS = (
    "gen_ai.server.request.duration",
    "gen_ai.server.time_per_output_token",
    "gen_ai.server.time_to_first_token",
)
_PROVIDER = "tasuki"
_REQUEST = (*(0.01 * 2**power for power in range(14)),)
_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25),
    *(0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
_LABELS = (
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.request.model",
    "gen_ai.response.model",
)
ERROR = "error.type"
LABELS = (*_LABELS, ERROR)
_IN_FLIGHT = 1 << 16


class GenAiMetrics:
    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        """model: as clients name it."""
        self._model = model
        duration, per_token, first_token = METRICS
        made = (
            (duration, "From arrival to the end.", _REQUEST, LABELS),
            (per_token, "Mean over an answer's tokens after the first.", _TOKEN, _LABELS),
            (first_token, "From arrival to the first token.", _FIRST_TOKEN, _LABELS),
        )
        self._duration, self._per_token, self._first_token = (
            Histogram(
                f"{_spelt(name)}_seconds",
                text,
                [_spelt(label) for label in labels],
                buckets=bounds,
                registry=registry,
            )
            for name, text, bounds, labels in made
        )
        self._operations: OrderedDict[RequestId, str] = OrderedDict()

    def begin(self, request: RequestId, operation: str) -> None:
        """operation: as RequestContext.operation."""
        self._operations[request] = operation
        while len(self._operations) > _IN_FLIGHT:
            self._operations.popitem(last=False)

    def observe(self, message: Finished | Rejected) -> None:
        """A request that began elsewhere, as a room, is not a client's and counts nowhere."""
        operation = self._operations.pop(message.request_id, None)
        if operation is None or isinstance(message, Rejected):
            # Nothing is known of how long it took.
            return
        usage = message.usage
        labels = (operation, _PROVIDER, self._model, self._model)
        aborted = message.reason is FinishReason.ABORT
        error = FinishReason.ABORT.value if aborted else ""
        self._duration.labels(*labels, error).observe(usage.seconds)
        if aborted:
            return
        if usage.completion_tokens:
            self._first_token.labels(*labels).observe(usage.time_to_first_token)
        per_token = seconds_per_token(usage)
        if per_token is not None:
            self._per_token.labels(*labels).observe(per_token)


def _spelt(name: str) -> str:
    return name.replace(".", "_")
