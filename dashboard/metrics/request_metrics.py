"""Counters and histograms of requests, fed from the messages that end them.

Borrows its registry. One thread. Invariant: prompt tokens == usable tokens + the sum of lost tokens
over causes, exactly as in the usages that clients got.
"""

from prometheus_client import CollectorRegistry

from tasuki.engine.messages import (
    ErrorKind,
    Finished,
    FinishReason,
    HitBreakdown,
    Rejected,
    TransferReport,
    Usage,
)

from .families import EXPOSED, FIRST_TOKEN, PREFILL, QUEUE, REQUEST, TOKEN, WINDOW
from .fleet.choice_metrics import ChoiceMetrics
from .fleet.link_metrics import LinkMetrics
from .instruments import Instruments
from .life_spans import prefilled_seconds, queued_seconds, seconds_per_token

UNSCHEDULED = "unscheduled"
"""Cause of the prompt tokens of requests that ended before their prompt was looked up."""
_DRAFT_LABELS = ("drafter", "place")


class RequestMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        made = Instruments(registry)
        self._finished = made.counter(
            "requests_finished", "Requests that ended, by reason.", "reason"
        )
        self._rejected = made.counter("requests_rejected", "Requests refused, by kind.", "kind")
        # From the start: where a series begins at 1, no rate shows that event.
        for reason in FinishReason:
            self._finished.labels(reason.value)
        for kind in ErrorKind:
            self._rejected.labels(kind.value)
        self._prompt = made.counter("request_prompt_tokens", "Prompt tokens of ended requests.")
        self._usable = made.counter("request_usable_tokens", "Prompt tokens served from the cache.")
        self._lost = made.counter(
            "request_lost_tokens", "Prompt tokens that were computed, by cause.", "cause"
        )
        self._loaded = made.counter(
            "request_loaded_tokens",
            "Of prompt tokens served from the cache, those that a load brought, by tier.",
            "tier",
        )
        self._generated = made.counter("generated_tokens", "Tokens emitted to clients.")
        self._drafted = made.counter(
            "drafted_tokens",
            "Tokens proposed and computed before they were drawn, by what proposed them and their "
            "place in a forward's drafts.",
            *_DRAFT_LABELS,
        )
        self._accepted = made.counter(
            "accepted_draft_tokens", "Of drafted tokens those that answers have.", *_DRAFT_LABELS
        )
        self._remote = made.counter("remote_prefills", "Requests whose prompt was handed over.")
        self._fallbacks = made.counter(
            "local_fallbacks", "Requests whose hand-over was lost and whose prompt came from here."
        )
        self._transferred = made.counter("handover_bytes", "Bytes that hand-overs brought here.")
        self._links = LinkMetrics(made)
        self._choices = ChoiceMetrics(made)
        self._first_token = made.seconds(
            "time_to_first_token", "From arrival to the first token.", FIRST_TOKEN
        )
        self._per_token = made.seconds(
            "time_per_output_token", "Mean over a request's tokens after the first.", TOKEN
        )
        self._request = made.seconds("request_duration", "From arrival to the end.", REQUEST)
        self._queue = made.seconds(
            "queue", "Waiting, here or for a prefill node, before the prompt was computed.", QUEUE
        )
        self._prefill = made.seconds("prefill", "Computing or receiving the prompt.", PREFILL)
        self._exposed = made.seconds(
            "handover_exposed", "Transfer time after the forward's end.", EXPOSED
        )
        self._window = made.seconds(
            "handover_window",
            "A window of a hand-over on its sender's clock, from its digest's begin to its flush.",
            WINDOW,
        )

    def count_tokens(self, count: int) -> None:
        self._generated.inc(count)

    def observe(self, message: Finished | Rejected) -> None:
        match message:
            case Rejected(error=error):
                self._rejected.labels(error.kind.value).inc()
            case Finished(reason=reason, usage=usage, life=life):
                self._finished.labels(reason.value).inc()
                self._observe_usage(usage)
                self._queue.observe(queued_seconds(life))
                if usage.hit is not None:
                    self._prefill.observe(prefilled_seconds(life))

    def _observe_usage(self, usage: Usage) -> None:
        self._prompt.inc(usage.prompt_tokens)
        self._observe_hit(usage.prompt_tokens, usage.hit)
        for use in usage.drafts:
            pairs = zip(use.drafted, use.accepted, strict=True)
            for place, (drafted, accepted) in enumerate(pairs, 1):
                self._drafted.labels(use.source, place).inc(drafted)
                self._accepted.labels(use.source, place).inc(accepted)
        if usage.local_fallback:
            self._fallbacks.inc()
        if usage.prefill_choice is not None:
            self._choices.observe(usage.prefill_choice, usage.hit)
        if usage.transfer is not None:
            self._remote.inc()
            self._observe_transfer(usage.prefilled_on, usage.transfer)
        self._request.observe(usage.seconds)
        if usage.completion_tokens:
            self._first_token.observe(usage.time_to_first_token)
        per_token = seconds_per_token(usage)
        if per_token is not None:
            self._per_token.observe(per_token)

    def _observe_transfer(self, peer: str, transfer: TransferReport) -> None:
        self._links.observe(peer, transfer)
        self._transferred.inc(transfer.bytes)
        self._exposed.observe(transfer.exposed_seconds)
        if transfer.timeline is not None:
            for window in transfer.timeline.sender.windows:
                self._window.observe(window.flushed_at - window.begun_at)

    def _observe_hit(self, prompt_tokens: int, hit: HitBreakdown | None) -> None:
        if hit is None:
            self._lost.labels(UNSCHEDULED).inc(prompt_tokens)
            return
        self._usable.inc(hit.usable_tokens)
        for cause, tokens in hit.causes.items():
            self._lost.labels(cause).inc(tokens)
        for tier, tokens in hit.loaded.items():
            self._loaded.labels(tier).inc(tokens)
