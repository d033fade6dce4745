"""States that go from node to node though nobody waits for them there: what a node that ends leaves
to prefill nodes, and what a decode node fetches. Borrows its registry. One thread."""

from enum import Enum

from prometheus_client import CollectorRegistry

from tasuki.engine.messages import FetchOutcome, HeirOutcome, StateFetched, StateLeft

from .instruments import Instruments


class _Copies:
    """States of one way by outcome, and the tokens and bytes of those that arrived."""

    def __init__(
        self,
        made: Instruments,
        name: str,
        outcomes: type[Enum],
        states: str,
        tokens: str,
        size: str,
    ) -> None:
        """states, tokens, size: what each counter is of."""
        self._states = made.counter(name, states, "outcome")
        for outcome in outcomes:
            self._states.labels(outcome.value)
        self._tokens = made.counter(f"{name}_tokens", tokens)
        self._bytes = made.counter(f"{name}_bytes", size)

    def observe(self, copied: StateLeft | StateFetched, arrived: Enum) -> None:
        self._states.labels(copied.outcome.value).inc()
        if copied.outcome is arrived:
            self._tokens.inc(copied.tokens)
            self._bytes.inc(copied.bytes)


class CopiedStateMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        made = Instruments(registry)
        self._left = _Copies(
            made,
            "states_left",
            HeirOutcome,
            "States that this node, as it drained, was to leave to prefill nodes, by outcome.",
            "Tokens behind which the states stand that prefill nodes took.",
            "Bytes that prefill nodes pulled of such states.",
        )
        self._fetched = _Copies(
            made,
            "states_fetched",
            FetchOutcome,
            "States that this node asked a prefill node for, so that another one may pull them, by "
            "outcome.",
            "Tokens behind which the states stand that came so.",
            "Bytes that came for such states.",
        )

    def observe(self, copied: StateLeft | StateFetched) -> None:
        match copied:
            case StateLeft():
                self._left.observe(copied, HeirOutcome.TAKEN)
            case StateFetched():
                self._fetched.observe(copied, FetchOutcome.FETCHED)
