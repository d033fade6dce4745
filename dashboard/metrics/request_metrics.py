"""Metrics of requests, callers, targets, chosen prefill nodes, and hand-overs by sender.

seconds_by_phase() and its siblings read a request's life (its phases with times) and usage. Pure.

RequestMetrics counts requests by their final messages. Invariant: prompt tokens == usable tokens +
the sum of lost tokens over causes, exactly as in the usages sent to clients.

ChoiceMetrics counts the choices of prefill nodes, and the worth of the choices. LinkMetrics counts
the hand-overs to a decode node by the name of the prefill node. All borrow their registry or
instruments. One thread.

CallerMetrics counts ended requests and seconds of their tokens by caller. It borrows its registry,
and owns the callers of requests in flight. One thread. Invariant: the labels name at most
MOST_CALLERS + 1 callers, since a gateway may name any number of tenants.

TargetMetrics counts the requests with targets: kept, missed or refused. One thread. Invariant: a
request without a target is counted nowhere.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry

from tasuki.engine.messages import (
    ErrorKind,
    Finished,
    FinishReason,
    HitBreakdown,
    LifeMark,
    PrefillChoice,
    Rejected,
    RequestId,
    RequestPhase,
    Stage,
    Submit,
    TransferReport,
    Usage,
)
from tasuki.routing.node_choice import Reason

from .families import EXPOSED, FIRST_TOKEN, PREFILL, QUEUE, REQUEST, TOKEN, WINDOW, Instruments

UNSCHEDULED = "unscheduled"
"""Cause of lost prompt tokens if the request ended before the cache looked up its prompt."""
_DRAFT_LABELS = ("drafter", "place")

Name = TypeVar("Name", bound=str)


class RequestMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        made = Instruments(registry)
        self._finished = made.counter(
            "requests_finished", "Requests that ended, by reason.", "reason"
        )
        self._rejected = made.counter("requests_rejected", "Requests refused, by kind.", "kind")
        # Create every series now: if a series begins at 1, no rate shows its first event.
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
            "Tokens proposed and computed before they were sampled, by what proposed them "
            "and their "
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
            "A layer chunk of a hand-over on its sender's clock, from its digest's begin to "
            "its flush.",
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
        """Count a choice of a prefill node. hit: the prompt's tokens by usability when it was
        computed; None: not known, so not counted."""
        self._choices.labels(choice.reason).inc()
        self._regret.inc(choice.regret_seconds)
        if hit is not None:
            self._expected.inc(choice.expected_tokens)
            self._found.inc(hit.usable_tokens)


class LinkMetrics:
    def __init__(self, made: Instruments) -> None:
        self._handovers = made.counter(
            "handover_link_handovers", "Hand-overs that came here, by prefill node.", "peer"
        )
        self._bytes = made.counter(
            "handover_link_bytes", "Bytes that hand-overs brought here, by prefill node.", "peer"
        )
        self._exposed = made.counter(
            "handover_link_exposed_seconds",
            "Transfer time after the forward's end, by prefill node.",
            "peer",
        )

    def observe(self, peer: str, transfer: TransferReport) -> None:
        """Count a hand-over to this decode node. peer: the prefill node's name."""
        self._handovers.labels(peer).inc()
        self._bytes.labels(peer).inc(transfer.bytes)
        self._exposed.labels(peer).inc(transfer.exposed_seconds)


def seconds_by_phase(first: Name, marks: Iterable[tuple[Name, float]]) -> Counter[Name]:
    """Return the seconds in each phase of a request. first: the phase until the first mark. marks:
    pairs of a phase and the second of its start. The last mark has no length. Another node can send
    phases unknown to this version."""
    spans: Counter[Name] = Counter()
    phase, since = first, 0.0
    for entered, at in marks:
        spans[phase] += at - since  # type: ignore[assignment]
        phase, since = entered, at
    return spans


def _spans(life: Sequence[LifeMark]) -> Counter[RequestPhase]:
    return seconds_by_phase(RequestPhase.WAITING, ((mark.state, mark.at) for mark in life))


def queued_seconds(life: Sequence[LifeMark]) -> float:
    """Return the seconds a request waited before computing began, here or on the chosen prefill
    node."""
    return sum(seconds for phase, seconds in _spans(life).items() if phase.is_queued)


def prefilled_seconds(life: Sequence[LifeMark]) -> float:
    """Return the seconds of computing the request's prompt here or receiving it."""
    return sum(seconds for phase, seconds in _spans(life).items() if phase.stage is Stage.PREFILL)


def seconds_per_token(usage: Usage) -> float | None:
    """Return the mean seconds a token of an answer, over the tokens after the first. Return None
    without such tokens."""
    later = usage.completion_tokens - 1
    return (usage.seconds - usage.time_to_first_token) / later if later > 0 else None


def missed_targets(usage: Usage) -> list[str]:
    """Return the names of the latency targets missed by the answer; empty if it missed or had
    none."""
    targets = usage.targets
    if targets is None:
        return []
    taken = (
        ("first_token", targets.first_token, usage.time_to_first_token),
        ("per_token", targets.per_token, seconds_per_token(usage)),
        ("answer", targets.answer, usage.seconds),
    )
    return [
        name
        for name, wanted, took in taken
        if wanted is not None and took is not None and took > wanted
    ]


MOST_CALLERS = 64
OTHERS = "(others)"
"""Label of all callers after the first MOST_CALLERS. No caller's own name has a bracket."""

# As few bounds as needed to judge a target, because there is a series for each bound and caller.
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
        """Caller's label and priority of each request in flight."""

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
                # An aborted answer shows only the targets already missed.
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
