"""States that go from node to node though nobody waits for them there: what a node that ends leaves
to prefill nodes, and what a decode node fetches. Borrows its registry. One thread."""

from prometheus_client import CollectorRegistry

from tasuki.engine.messages import FetchOutcome, HeirOutcome, StateFetched, StateLeft

from .instruments import Instruments


class CopiedStateMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        made = Instruments(registry)
        self._left = made.counter(
            "states_left",
            "States that this node, as it drained, was to leave to prefill nodes, by outcome.",
            "outcome",
        )
        for outcome in HeirOutcome:
            self._left.labels(outcome.value)
        self._left_tokens = made.counter(
            "states_left_tokens", "Tokens behind which the states stand that prefill nodes took."
        )
        self._left_bytes = made.counter(
            "states_left_bytes", "Bytes that prefill nodes pulled of such states."
        )
        self._fetched = made.counter(
            "states_fetched",
            "States that this node asked a prefill node for, so that another one may pull them, by "
            "outcome.",
            "outcome",
        )
        for fetched in FetchOutcome:
            self._fetched.labels(fetched.value)
        self._fetched_tokens = made.counter(
            "states_fetched_tokens", "Tokens behind which the states stand that came so."
        )
        self._fetched_bytes = made.counter(
            "states_fetched_bytes", "Bytes that came for such states."
        )

    def observe(self, copied: StateLeft | StateFetched) -> None:
        match copied:
            case StateLeft(outcome=outcome):
                self._left.labels(outcome.value).inc()
                if outcome is HeirOutcome.TAKEN:
                    self._left_tokens.inc(copied.tokens)
                    self._left_bytes.inc(copied.bytes)
            case StateFetched(outcome=outcome):
                self._fetched.labels(outcome.value).inc()
                if outcome is FetchOutcome.FETCHED:
                    self._fetched_tokens.inc(copied.tokens)
                    self._fetched_bytes.inc(copied.bytes)
