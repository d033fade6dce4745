"""What daemons did with a workload, from their answers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tasuki.bench.fleet.node_model import MeasuredPrefill, fitted
from tasuki.client.answer import Answer
from tasuki.model.flops import PrefillFlops
from tasuki.routing.prefill_seconds import PrefillSeconds

from .player import Played


@dataclass(frozen=True)
class Rates:
    """prefill: as prefill nodes said of themselves. token_seconds: of an answer's token."""

    prefill: PrefillSeconds
    token_seconds: float


def rates(played: Sequence[Played]) -> Rates:
    """Of the later half of the answers, when nodes have learnt their speed."""
    answers = _answers(played[len(played) // 2 :])
    seconds = sum(each.usage.seconds - each.usage.time_to_first_token for each in answers)
    tokens = sum(len(each.token_ids) - 1 for each in answers)
    bids = [
        MeasuredPrefill(bid.usable_tokens, each.usage.prompt_tokens, bid.prefill_seconds)
        for each in answers
        if each.usage.prefill_choice is not None
        for bid in each.usage.prefill_choice.bids
        if bid.prefill_seconds > 0
    ]
    return Rates(fitted(bids), seconds / max(tokens, 1))


def figures(played: Sequence[Played], flops: PrefillFlops) -> dict[str, Any]:
    """Shares as the simulator's; usable: tokens of which the computing node had KV and state when
    it began, whether it kept or pulled them. local: turns that no prefill node computed."""
    answers = _answers(played)
    usages = [(each.usage, each.usage.hit) for each in answers]
    usable = [hit.usable_tokens if hit is not None else 0 for _, hit in usages]
    prompts = [usage.prompt_tokens for usage, _ in usages]
    first = sorted(usage.time_to_first_token for usage, _ in usages)
    causes: Counter[str] = Counter()
    for _, hit in usages:
        causes.update(hit.causes if hit is not None else {})
    whole = sum(flops.of(tokens) for tokens in prompts)
    return {
        "turns": len(played),
        "lost_turns": sum(each.lost for each in played),
        "errors": dict(Counter(each.error for each in played if each.error)),
        "flops_saved": sum(flops.of(tokens) for tokens in usable) / whole,
        "hit_rate": sum(usable) / sum(prompts),
        "ttft_mean_seconds": sum(first) / len(first),
        "ttft_p95_seconds": first[int(0.95 * len(first))],
        "computed_on": dict(Counter(usage.prefilled_on for usage, _ in usages)),
        "fallbacks": sum(usage.local_fallback for usage, _ in usages),
        "pulled_turns": sum(usage.pulled is not None for usage, _ in usages),
        "pulled_tokens": sum(
            usage.pulled.tokens for usage, _ in usages if usage.pulled is not None
        ),
        "missed_by_cause": {name: tokens / sum(prompts) for name, tokens in causes.items()},
    }


def _answers(played: Sequence[Played]) -> list[Answer]:
    return [each.answer for each in played if each.answer is not None]
