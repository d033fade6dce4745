"""What a node that ends leaves to prefill nodes. Borrows its registry. One thread."""

from prometheus_client import CollectorRegistry

from tasuki.engine.messages import HeirOutcome, StateLeft

from .instruments import Instruments


class HeirMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        made = Instruments(registry)
        self._states = made.counter(
            "states_left",
            "States that this node, as it drained, was to leave to prefill nodes, by outcome.",
            "outcome",
        )
        for outcome in HeirOutcome:
            self._states.labels(outcome.value)
        self._tokens = made.counter(
            "states_left_tokens", "Tokens behind which the states stand that prefill nodes took."
        )
        self._bytes = made.counter(
            "states_left_bytes", "Bytes that prefill nodes pulled of such states."
        )

    def observe(self, left: StateLeft) -> None:
        self._states.labels(left.outcome.value).inc()
        if left.outcome is HeirOutcome.TAKEN:
            self._tokens.inc(left.tokens)
            self._bytes.inc(left.bytes)
