"""Requests over one prompt: requests with a common prefix arriving together, and answers forked
from one request.

Other requests wait for a leader. Queues are not known here. Thread rule: the engine loop's.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tasuki.engine import messages as m
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
from tasuki.pycache.keys import Keys, PromptTokens
from tasuki.pycache.layout import PAGE_TOKENS

from .checkpoints import before_picture, behind_picture

_LEAST_SAVED = 2 * PAGE_TOKENS
"""Fewest saved tokens for a request to wait for another one's common prefix."""
_MOST_KEPT = 8
"""Most checkpoints of one prompt, because each takes a slot from other states."""


@dataclass(frozen=True)
class Leader:
    """A running request to be waited for: it will keep the state after its first `position` tokens.

    When requests with a long common prefix arrive together, the first computes it. The others wait
    for its checkpoint if waiting leaves less to compute. Requests and allocations are compared by
    identity.
    """

    request: Request
    allocation: Allocation
    position: int

    @property
    def is_over(self) -> bool:
        """True if the leader's state is kept, or never will be."""
        state = self.request.state
        if not isinstance(state, AwaitingGrant | Prefilling):
            return True
        if state.allocation is not self.allocation:
            return True
        return isinstance(state, Prefilling) and state.progress.num_computed >= self.position


@dataclass(frozen=True)
class LoadLeader:
    """A request to be waited for: it loads its first `position` tokens from a lower tier, and
    another prompt has the same prefix."""

    request: Request
    allocation: Allocation
    position: int

    @property
    def is_over(self) -> bool:
        """True if the leader's load has ended, with success or not."""
        state = self.request.state
        return not isinstance(state, Loading) or state.allocation is not self.allocation


def load_leader_of(
    request: Request, computing: Iterable[Request], kv_tokens: int
) -> LoadLeader | None:
    """Return the request with a load covering most of this request's prompt; None if none saves
    enough. The loaded KV enters the prefix tree when the load completes, so the same pages are not
    loaded twice. kv_tokens: tokens of this prompt already in the prefix tree."""
    best: LoadLeader | None = None
    for other in computing:
        state = other.state
        if other is request or other.salt != request.salt or not isinstance(state, Loading):
            continue
        common = min(common_tokens(request.keys, other.keys), state.boundary)
        position = common // PAGE_TOKENS * PAGE_TOKENS
        if position - kv_tokens < _LEAST_SAVED:
            continue
        if best is None or position > best.position:
            best = LoadLeader(other, state.allocation, position)
    return best


def leader_of(request: Request, computing: Iterable[Request]) -> Leader | None:
    """Return as leader the request of equal salt about to compute the longest common prefix, up to
    a page boundary or a picture's end. Return None without one. computing: requests with a prompt
    in computation, or just before it."""
    best: Leader | None = None
    for other in computing:
        state = other.state
        if other.salt != request.salt or not isinstance(state, AwaitingGrant | Prefilling):
            continue
        common = min(common_tokens(request.keys, other.keys), len(request.prompt) - 1)
        runs = request.pictures.runs if request.pictures else ()
        position = max(
            before_picture(common // PAGE_TOKENS * PAGE_TOKENS, runs), behind_picture(common, runs)
        )
        if position > (0 if best is None else best.position) and _may_keep(other, position):
            best = Leader(other, state.allocation, position)
    return best


def pays(leader: Leader, usable: int) -> bool:
    """Return True if waiting for the leader's state is less work than computing the common prefix
    again. usable: cached tokens of the waiting request."""
    saved = leader.position - usable
    return saved >= _LEAST_SAVED and usable <= _computed(leader.request)


def follow(leader: Leader) -> None:
    """Make the leader keep its state after `position` tokens, unless this is planned already.
    REQUIRES: no forward has reached this position."""
    planned = _planned(leader.request)
    if all(checkpoint.position != leader.position for checkpoint in planned):
        planned.append(PlannedCheckpoint(leader.position, CheckpointKind.BRANCH))
        planned.sort(key=lambda checkpoint: checkpoint.position)


def _may_keep(other: Request, position: int) -> bool:
    """Return True if a checkpoint after `position` tokens is planned for `other`, or may be."""
    state = other.state
    if isinstance(state, Prefilling) and state.progress.num_scheduled >= position:
        return False
    planned = _planned(other)
    return len(planned) < _MOST_KEPT or any(kept.position == position for kept in planned)


def _planned(request: Request) -> list[PlannedCheckpoint]:
    state = request.state
    return state.checkpoints if isinstance(state, Prefilling) else request.branch_points


def _computed(request: Request) -> int:
    """Return the number of the request's prompt tokens already computed or cached."""
    state = request.state
    if isinstance(state, Prefilling):
        return state.progress.num_computed
    assert isinstance(state, AwaitingGrant)
    return state.allocation.cached_tokens


def common_tokens(one: Keys, other: Keys) -> int:
    """Return the length of the common prefix of two token arrays."""
    length = min(len(one), len(other))
    if length == 0 or one[0] != other[0]:
        return 0
    different = one[:length] != other[:length]
    first = int(np.argmax(different))
    return first if different[first] else length


NOTHING_SAMPLED = SamplingParams(max_new_tokens=0)


def carrier_of(choices: Sequence[Request], taken: Collection[m.RequestId]) -> Request:
    """Return the carrier: an extra request to compute the common prompt of several answers.

    The carrier computes all tokens but the last once, and keeps them in the prefix tree at their
    exact end. Each answer then starts like a request with a cached prompt: it shares the whole
    pages and copies the last page and the state. It forwards the last token for its own first
    logits, with its own seed, penalties and end. The carrier's id is stored in each answer's
    request. choices: answers to one prompt of at least two tokens. taken: ids of other requests.
    """
    first = choices[0]
    name = m.RequestId(f"{first.id}/prompt")
    while name in taken:
        name = m.RequestId(f"{name}'")
    tokens = len(first.prompt) - 1
    carrier = Request(
        name,
        PromptTokens(first.prompt[:tokens]),
        NOTHING_SAMPLED,
        first.salt,
        marks=tuple(mark for mark in first.marks if mark <= tokens),
        message_end=first.message_end,
        caller=first.caller,
        priority=first.priority,
        patience=first.patience,
        targets=first.targets,
        scoring=first.scoring,
        forks=tuple(choices),
        pictures=first.pictures,
    )
    for choice in choices:
        choice.carrier, choice.scoring = carrier.id, None
    return carrier


def told_of(fork: Request, carrier: Request) -> None:
    """Copy the report about the prompt's computation from the carrier to the fork."""
    fork.hit = None if carrier.hit is None else _with_last_token(carrier.hit)
    fork.transfer, fork.pulled = carrier.transfer, carrier.pulled
    fork.route, fork.prefilled_on = carrier.route, carrier.prefilled_on
    fork.prefill_choice = carrier.prefill_choice
    fork.handover_lost = carrier.handover_lost
    fork.seen = carrier.seen


def _with_last_token(hit: m.HitBreakdown) -> m.HitBreakdown:
    """Return the cache hit of a carrier's prompt with its last token added, as a computed token."""
    in_pages = None if hit.in_pages is None else _with_last_token(hit.in_pages)
    return replace(
        hit,
        prompt_tokens=hit.prompt_tokens + 1,
        causes={**hit.causes, "new": hit.causes.get("new", 0) + 1},
        in_pages=in_pages,
    )


def scoring_of(message: m.Submit) -> PromptScoring | None:
    """Return the scoring of the message's prompt; None if the client asked for none."""
    if message.prompt_logprobs is None:
        return None
    return PromptScoring(message.prompt_logprobs, PromptTokens(message.prompt))
