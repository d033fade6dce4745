"""Reports and sampling to and from protobuf, for both protocols: a client's and the hand-over's.

Pure. Writers end in to_proto, readers in from_proto. Values and messages that have the same fields
by the same names are converted by these. A reader takes a message as it is: what a peer
sent is held to bounds by the node that reads it (decode_node/peer_reports.py).
"""

from dataclasses import asdict, fields, replace
from typing import Any

from google.protobuf.message import Message  # type: ignore[import-untyped]

from tasuki.model.grammar.grammar import Grammar, GrammarKind
from tasuki.model.ops.sampling.params import SamplingParams, TopLogprobs
from tasuki.model.ops.sampling.thinking_budget import ThinkingBudget
from tasuki.proto import handover_pb2, inference_pb2, report_pb2
from tasuki.transfer.reports import HandoverTimeline

from .reports import (
    DraftUse,
    EvictedCheckpoint,
    Eviction,
    HitBreakdown,
    PrefillBid,
    PrefillChoice,
    PullReport,
    RouteReport,
    TransferReport,
    Usage,
)
from .requests import Finished
from .types import FinishReason, Targets

_FINISH_REASONS = {
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: inference_pb2.FINISH_REASON_ABORT,
}
_REASONS_BY_NUMBER = {number: reason for reason, number in _FINISH_REASONS.items()}


def eviction_to_proto(eviction: Eviction) -> report_pb2.Eviction:
    return report_pb2.Eviction(**asdict(eviction))


def eviction_from_proto(eviction: report_pb2.Eviction) -> Eviction:
    return Eviction(**_given(eviction))


def evicted_checkpoint_from_proto(lost: report_pb2.LostState) -> EvictedCheckpoint:
    eviction = eviction_from_proto(lost.eviction) if lost.HasField("eviction") else None
    return EvictedCheckpoint(lost.tokens, lost.slabs_since, eviction)


def hit_to_proto(hit: HitBreakdown) -> report_pb2.HitBreakdown:
    return report_pb2.HitBreakdown(**asdict(hit))


def hit_from_proto(hit: report_pb2.HitBreakdown) -> HitBreakdown:
    """Reads one level of in_pages: more have no meaning, and a peer may send any number."""
    in_pages = _plain_hit_from_proto(hit.in_pages) if hit.HasField("in_pages") else None
    return replace(_plain_hit_from_proto(hit), in_pages=in_pages)


def _plain_hit_from_proto(hit: report_pb2.HitBreakdown) -> HitBreakdown:
    return HitBreakdown(
        hit.prompt_tokens,
        hit.kv_tokens,
        hit.usable_tokens,
        dict(hit.causes),
        hit.checkpoint_source if hit.HasField("checkpoint_source") else None,
        evicted_checkpoint_from_proto(hit.lost) if hit.HasField("lost") else None,
        template_changed_at=(
            hit.template_changed_at if hit.HasField("template_changed_at") else None
        ),
        loaded=dict(hit.loaded),
    )


def pulled_to_proto(pulled: PullReport) -> report_pb2.Pulled:
    return report_pb2.Pulled(tokens=pulled.tokens, bytes=pulled.bytes, seconds=pulled.seconds)


def pulled_from_proto(pulled: report_pb2.Pulled) -> PullReport:
    return PullReport(pulled.tokens, pulled.bytes, pulled.seconds)


def route_to_proto(route: RouteReport) -> report_pb2.Route:
    return report_pb2.Route(choice=route.choice, estimates=route.estimates)


def route_from_proto(route: report_pb2.Route) -> RouteReport:
    return RouteReport(route.choice, dict(route.estimates))


def prefill_choice_to_proto(choice: PrefillChoice) -> report_pb2.PrefillChoice:
    return report_pb2.PrefillChoice(
        reason=choice.reason,
        bids=[report_pb2.PrefillBid(**vars(bid)) for bid in choice.bids],
        weighed=choice.weighed,
        expected_tokens=choice.expected_tokens,
        regret_seconds=choice.regret_seconds,
        moved_from=choice.moved_from,
    )


def prefill_choice_from_proto(choice: report_pb2.PrefillChoice) -> PrefillChoice:
    return PrefillChoice(
        choice.reason,
        tuple(
            PrefillBid(
                bid.node,
                bid.address,
                bid.usable_tokens,
                bid.prefill_seconds,
                bid.wait_seconds,
                bid.exposed_seconds,
                bid.cost,
                bid.chosen,
            )
            for bid in choice.bids
        ),
        choice.weighed,
        choice.expected_tokens,
        choice.regret_seconds,
        choice.moved_from,
    )


def transfer_to_proto(transfer: TransferReport) -> report_pb2.TransferReport:
    """Without the sender's track: a sender writes it itself (transfer/protocol/messages.py)."""
    return report_pb2.TransferReport(
        bytes=transfer.bytes,
        windows=transfer.windows,
        pages=transfer.pages,
        hidden_seconds=transfer.hidden_seconds,
        exposed_seconds=transfer.exposed_seconds,
    )


def transfer_from_proto(
    transfer: report_pb2.TransferReport, timeline: HandoverTimeline | None = None
) -> TransferReport:
    """timeline: both sides' tracks, of which the message has the sender's at most."""
    return TransferReport(
        transfer.bytes,
        transfer.windows,
        transfer.pages,
        transfer.hidden_seconds,
        transfer.exposed_seconds,
        timeline,
    )


def usage_to_proto(usage: Usage) -> inference_pb2.Usage:
    """For a client, which gets no in_pages beside its hit."""
    hit = None if usage.hit is None else hit_to_proto(replace(usage.hit, in_pages=None))
    choice = usage.prefill_choice
    return inference_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        hit=hit,
        transfer=None if usage.transfer is None else transfer_to_proto(usage.transfer),
        prefilled_on=usage.prefilled_on,
        local_fallback=usage.local_fallback,
        time_to_first_token_seconds=usage.time_to_first_token,
        seconds=usage.seconds,
        pulled=None if usage.pulled is None else pulled_to_proto(usage.pulled),
        route=None if usage.route is None else route_to_proto(usage.route),
        prefill_choice=None if choice is None else prefill_choice_to_proto(choice),
        targets=None if usage.targets is None else targets_to_proto(usage.targets),
        drafted_tokens=usage.drafted_tokens,
        accepted_tokens=usage.accepted_tokens,
        accepted_prediction_tokens=usage.accepted_prediction_tokens,
        rejected_prediction_tokens=usage.rejected_prediction_tokens,
        drafts=[
            inference_pb2.Drafts(source=use.source, drafted=use.drafted, accepted=use.accepted)
            for use in usage.drafts
        ],
    )


def usage_from_proto(usage: inference_pb2.Usage) -> Usage:
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        hit=hit_from_proto(usage.hit) if usage.HasField("hit") else None,
        transfer=transfer_from_proto(usage.transfer) if usage.HasField("transfer") else None,
        prefilled_on=usage.prefilled_on,
        local_fallback=usage.local_fallback,
        time_to_first_token=usage.time_to_first_token_seconds,
        seconds=usage.seconds,
        pulled=pulled_from_proto(usage.pulled) if usage.HasField("pulled") else None,
        route=route_from_proto(usage.route) if usage.HasField("route") else None,
        prefill_choice=(
            prefill_choice_from_proto(usage.prefill_choice)
            if usage.HasField("prefill_choice")
            else None
        ),
        targets=_targets_from_proto(usage.targets) if usage.HasField("targets") else None,
        drafted_tokens=usage.drafted_tokens,
        accepted_tokens=usage.accepted_tokens,
        accepted_prediction_tokens=_optional(usage, "accepted_prediction_tokens"),
        rejected_prediction_tokens=_optional(usage, "rejected_prediction_tokens"),
        drafts=tuple(
            DraftUse(use.source, tuple(use.drafted), tuple(use.accepted)) for use in usage.drafts
        ),
    )


def _optional(usage: inference_pb2.Usage, field: str) -> int | None:
    return getattr(usage, field) if usage.HasField(field) else None


def targets_to_proto(targets: Targets) -> inference_pb2.Targets:
    return inference_pb2.Targets(
        first_token_seconds=targets.first_token,
        per_token_seconds=targets.per_token,
        answer_seconds=targets.answer,
    )


def _targets_from_proto(targets: inference_pb2.Targets) -> Targets:
    given = {field.name: seconds for field, seconds in targets.ListFields()}
    return Targets(**{name.removesuffix("_seconds"): given[name] for name in given})


def finished_to_proto(finished: Finished) -> inference_pb2.Finished:
    return inference_pb2.Finished(
        reason=_FINISH_REASONS[finished.reason], usage=usage_to_proto(finished.usage)
    )


def finish_reason_from_proto(reason: inference_pb2.FinishReason) -> FinishReason:
    return _REASONS_BY_NUMBER[reason]


def sampling_to_proto(sampling: SamplingParams) -> handover_pb2.Sampling:
    """As a ticket carries it: decided, where a client's may leave fields out."""
    # Not asdict: it copies every value, which takes longer than all else of a Reserve.
    values = {field.name: getattr(sampling, field.name) for field in fields(sampling)}
    return handover_pb2.Sampling(
        **values
        | {
            "logit_bias": [
                handover_pb2.TokenBias(token=token, bias=bias)
                for token, bias in sampling.logit_bias
            ],
            "bad_words": [handover_pb2.TokenSequence(ids=word) for word in sampling.bad_words],
            "grammar": _grammar_to_proto(sampling.grammar),
            "thinking": _budget_to_proto(sampling.thinking),
        }
    )


def sampling_from_proto(sampling: handover_pb2.Sampling) -> SamplingParams:
    """Raises ValueError naming the field. There is a token: a hand-over ends with it."""
    if not sampling.max_new_tokens:
        raise ValueError("max_new_tokens must be at least 1 in a hand-over, not 0")
    return SamplingParams(
        **_given(sampling)
        | {
            "stop_token_ids": tuple(sampling.stop_token_ids),
            "logit_bias": tuple((item.token, item.bias) for item in sampling.logit_bias),
            "bad_words": tuple(tuple(word.ids) for word in sampling.bad_words),
            "allowed_token_ids": tuple(sampling.allowed_token_ids),
            "grammar": _grammar_from_proto(sampling.grammar)
            if sampling.HasField("grammar")
            else None,
            "thinking": _budget_from_proto(sampling.thinking)
            if sampling.HasField("thinking")
            else None,
        }
    )


def _grammar_to_proto(grammar: Grammar | None) -> handover_pb2.Grammar | None:
    return None if grammar is None else handover_pb2.Grammar(**asdict(grammar))


def _grammar_from_proto(grammar: handover_pb2.Grammar) -> Grammar:
    try:
        kind = GrammarKind(grammar.kind)
    except ValueError as error:
        raise ValueError(f"grammar is of a kind not known here: {grammar.kind!r:.40}") from error
    return Grammar(**_given(grammar) | {"kind": kind, "gap": tuple(grammar.gap)})


def _budget_to_proto(budget: ThinkingBudget | None) -> handover_pb2.ThinkingBudget | None:
    return None if budget is None else handover_pb2.ThinkingBudget(**asdict(budget))


def _budget_from_proto(budget: handover_pb2.ThinkingBudget) -> ThinkingBudget:
    return ThinkingBudget(**_given(budget) | {"closing": tuple(budget.closing)})


def top_to_proto(top: TopLogprobs) -> list[handover_pb2.TokenLogprob]:
    return [handover_pb2.TokenLogprob(token=token, logprob=logprob) for token, logprob in top]


def _given(message: Message) -> dict[str, Any]:
    """The message's fields by name; None for one that may be absent and is."""
    return {
        field.name: getattr(message, field.name)
        if not field.has_presence or message.HasField(field.name)
        else None
        for field in message.DESCRIPTOR.fields
    }
