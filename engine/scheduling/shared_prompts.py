"""Requests over one prompt: siblings that arrive together, and answers forked from one request.

Thread rule: the engine loop's.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tasuki.engine import messages as m
from tasuki.engine.messages import Tokens
from tasuki.engine.request import (
    AwaitingGrant,
    Loading,
    PlannedCheckpoint,
    Prefilling,
    PromptScoring,
    Request,
)
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.pycache._cpp_cache import Allocation, CheckpointKind
from tasuki.pycache.layout import PAGE_TOKENS

_LEAST_SAVED = 2 * PAGE_TOKENS
"""Tokens for which it is worth to wait."""
_MOST_KEPT = 8
"""Checkpoints of one prompt: each takes a slot from what others keep."""


@dataclass(frozen=True)
class Leader:
    """Requests that arrive together over one long prefix: the first computes it, the others wait
    for its checkpoint where that is less to compute.

    A leader is a request that runs, as far as others wait for it. Knows nothing of queues. Thread
    rule: the engine loop's.

    A running request that will keep the state after `position` tokens. Requests and allocations are
    equal where they are the same.
    """

    request: Request
    allocation: Allocation
    position: int

    @property
    def is_over(self) -> bool:
        """Whether the state is kept, or never will be."""
        state = self.request.state
        if not isinstance(state, AwaitingGrant | Prefilling):
            return True
        if state.allocation is not self.allocation:
            return True
        return isinstance(state, Prefilling) and state.progress.num_computed >= self.position


@dataclass(frozen=True)
class LoadLeader:
    """A request that loads what `position` tokens of another one's prompt need too."""

    request: Request
    allocation: Allocation
    position: int

    @property
    def is_over(self) -> bool:
        """Whether the load is, however it went."""
        state = self.request.state
        return not isinstance(state, Loading) or state.allocation is not self.allocation


def load_leader_of(
    request: Request, computing: Iterable[Request], kv_tokens: int
) -> LoadLeader | None:
    """The request that loads most of what this one lacks, whose KV will stand in the tree once the
    load has landed: two do not load it twice. kv_tokens: of this one, that stand already."""
    best: LoadLeader | None = None
    for other in computing:
        state = other.state
        if other is request or other.salt != request.salt or not isinstance(state, Loading):
            continue
        common = min(common_tokens(request.prompt, other.prompt), state.boundary)
        position = common // PAGE_TOKENS * PAGE_TOKENS
        if position - kv_tokens < _LEAST_SAVED:
            continue
        if best is None or position > best.position:
            best = LoadLeader(other, state.allocation, position)
    return best


def leader_of(request: Request, computing: Iterable[Request]) -> Leader | None:
    """The request that will have computed most of what this one has in common with it. computing:
    whose prompts are being computed, or about to be."""
    best: Leader | None = None
    for other in computing:
        state = other.state
        if other.salt != request.salt or not isinstance(state, AwaitingGrant | Prefilling):
            continue
        common = min(common_tokens(request.prompt, other.prompt), len(request.prompt) - 1)
        position = common // PAGE_TOKENS * PAGE_TOKENS
        if position > (0 if best is None else best.position) and _may_keep(other, position):
            best = Leader(other, state.allocation, position)
    return best


def pays(leader: Leader, usable: int) -> bool:
    """Whether waiting is less work than computing it again. usable: tokens of the one who waits
    that need no computing already."""
    saved = leader.position - usable
    return saved >= _LEAST_SAVED and usable <= _computed(leader.request)


def follow(leader: Leader) -> None:
    """See to it that the state is kept. REQUIRES: no forward has come as far as the position."""
    planned = _planned(leader.request)
    if all(checkpoint.position != leader.position for checkpoint in planned):
        planned.append(PlannedCheckpoint(leader.position, CheckpointKind.BRANCH))
        planned.sort(key=lambda checkpoint: checkpoint.position)


def _may_keep(other: Request, position: int) -> bool:
    """Whether a state after so many tokens is going to be kept, or may be."""
    state = other.state
    if isinstance(state, Prefilling) and state.progress.num_scheduled >= position:
        return False
    planned = _planned(other)
    return len(planned) < _MOST_KEPT or any(kept.position == position for kept in planned)


def _planned(request: Request) -> list[PlannedCheckpoint]:
    state = request.state
    return state.checkpoints if isinstance(state, Prefilling) else request.branch_points


def _computed(request: Request) -> int:
    """Tokens of a prompt that need no forward any more."""
    state = request.state
    if isinstance(state, Prefilling):
        return state.progress.num_computed
    assert isinstance(state, AwaitingGrant)
    return state.allocation.cached_tokens


def common_tokens(one: Tokens, other: Tokens) -> int:
    """How many first tokens are the same."""
    length = min(len(one), len(other))
    if length == 0 or one[0] != other[0]:
        return 0
    different = one[:length] != other[:length]
    first = int(np.argmax(different))
    return first if different[first] else length


NOTHING_DRAWN = SamplingParams(max_new_tokens=0)


def carrier_of(choices: Sequence[Request], taken: Collection[m.RequestId]) -> Request:
    """Several answers to one prompt: all of it but the last token is computed once, by a request of
    its own, the carrier, and kept in the tree at its exact end. Each answer then begins there as
    any request does that finds its prompt cached: it shares the whole pages, copies the last one
    and the state, and forwards the one token whose logits its first draw needs, with its own seed,
    penalties and end.

    Pure: makes requests, and says what they may report. Who waits for whom is in the requests.

    The request that computes what the choices have in common. choices: of one prompt of at least
    two tokens. taken: ids of other requests.
    """
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
