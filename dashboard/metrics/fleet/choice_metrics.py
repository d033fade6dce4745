"""Counters of how prefill nodes were chosen, and of what the choices were worth.

Borrows its instruments. One thread.
"""

from tasuki.dashboard.metrics.instruments import Instruments
from tasuki.engine.messages import HitBreakdown, PrefillChoice
from tasuki.routing.prefill_route import Reason


class ChoiceMetrics:
    def __init__(self, made: Instruments) -> None:
        self._choices = made.counter(
            "prefill_choices",
            "Prompts that a prefill node computed, by why it was that one.",
            "reason",
        )
        for reason in Reason:
            self._choices.labels(reason.value)
        self._expected = made.counter(
            "prefill_choice_expected_tokens",
            "Prompt tokens that were held to be usable on the chosen node.",
        )
        self._found = made.counter(
            "prefill_choice_found_tokens",
            "Of the same prompts, tokens that were usable there.",
        )
        self._regret = made.counter(
            "prefill_choice_regret_seconds",
            "How much dearer choices were than the best of the other nodes, as it turned out.",
        )

    def observe(self, choice: PrefillChoice, hit: HitBreakdown | None) -> None:
        """hit: as the prompt was computed; None where that is not known."""
        self._choices.labels(choice.reason).inc()
        self._regret.inc(choice.regret_seconds)
        if hit is not None:
            self._expected.inc(choice.expected_tokens)
            self._found.inc(hit.usable_tokens)
