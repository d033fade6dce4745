"""Several answers to one prompt: all of it but the last token is computed once, by a request of
its own, the carrier, and kept in the tree at its exact end. Each answer then begins there as any
request does that finds its prompt cached: it shares the whole pages, copies the last one and the
state, and forwards the one token whose logits its first draw needs, with its own seed, penalties
and end.

Pure: makes requests, and says what they may report. Who waits for whom is in the requests.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from tasuki.engine import messages as m
from tasuki.engine.request import PromptScoring, Request
from tasuki.model.ops.sampling.params import SamplingParams

NOTHING_DRAWN = SamplingParams(max_new_tokens=0)


def carrier_of(choices: Sequence[Request], taken: Collection[m.RequestId]) -> Request:
    """The request that computes what the choices have in common. choices: of one prompt of at
    least two tokens. taken: ids of other requests."""
    first = choices[0]
    name = m.RequestId(f"{first.id}/prompt")
    while name in taken:
        name = m.RequestId(f"{name}'")
    tokens = len(first.prompt) - 1
    carrier = Request(
        name,
        first.prompt[:tokens],
        NOTHING_DRAWN,
        first.salt,
        marks=tuple(mark for mark in first.marks if mark <= tokens),
        message_end=first.message_end,
        caller=first.caller,
        priority=first.priority,
        patience=first.patience,
        targets=first.targets,
        scoring=first.scoring,
        forks=tuple(choices),
    )
    for choice in choices:
        choice.carrier, choice.scoring = carrier.id, None
    return carrier


def told_of(fork: Request, carrier: Request) -> None:
    """Let the fork report how its prompt was computed."""
    fork.hit = None if carrier.hit is None else _with_last_token(carrier.hit)
    fork.transfer, fork.pulled = carrier.transfer, carrier.pulled
    fork.route, fork.prefilled_on = carrier.route, carrier.prefilled_on
    fork.prefill_choice = carrier.prefill_choice
    fork.handover_lost = carrier.handover_lost


def _with_last_token(hit: m.HitBreakdown) -> m.HitBreakdown:
    """Of the prompt with its last token, which is always computed."""
    in_pages = None if hit.in_pages is None else _with_last_token(hit.in_pages)
    return replace(
        hit,
        prompt_tokens=hit.prompt_tokens + 1,
        causes={**hit.causes, "new": hit.causes.get("new", 0) + 1},
        in_pages=in_pages,
    )


def scoring_of(message: m.Submit) -> PromptScoring | None:
    """How the prompt is to be scored; None where it is not."""
    if message.prompt_logprobs is None:
        return None
    return PromptScoring(message.prompt_logprobs, message.prompt)
