"""What an engine reports of work that is over: evictions, hits, transfers, routes, steps.

Plain, immutable values. Nothing here decides or remembers. A bound in a field's type is metadata,
and holds where a peer has sent the field (room_proto.py).
"""

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import Annotated, TypeAlias

from tasuki.pycache._cpp_cache import CheckpointKind
from tasuki.transfer.peer_values import (
    ByteCount,
    Count32,
    Extent,
    Number,
    Seconds,
    Shown,
    count32,
    each,
    long_seconds,
    no_peers,
    one_of,
)
from tasuki.transfer.reports import HandoverTimeline

from .types import Message, Targets

TIERS = frozenset({"host", "disk"})
"""Below the arena, by name."""
LOAD_FAILED = "load_failed"
"""The cause of tokens that a tier below the arena was to bring, where what came was late or wrong;
it comes before the tree's. Only who asked for the load gives it
(engine/accounting.py)."""
LOAD_DECLINED = "load_declined"
"""The cause of tokens that a tier has and that were cheaper to compute."""
CAUSES_IN_ORDER = (
    LOAD_FAILED,
    LOAD_DECLINED,
    "checkpoint_evicted",
    "never_checkpointed",
    "alignment",
    "in_flight",
    "kv_evicted",
    "new",
)
"""Why a token of a prompt was not usable, in the order in which the tree lays its causes over a
prompt, from the last usable token on."""
CAUSES = frozenset(CAUSES_IN_ORDER)
NOT_PULLED = "not_pulled"
"""The cause of tokens that were computed on one node while another one held their KV and state; it
comes before the tree's. Only who compares both caches gives it
(engine/handover/receiving/pair_hit.py)."""
TEMPLATE_CHANGED = "template_changed"
"""A cause that no tree can see, of tokens that it takes for new: the chat template renders an
earlier turn otherwise than when it was the last."""
EVICTION_KINDS = frozenset({"checkpoint", "tail", "pages"})
CheckpointName: TypeAlias = Annotated[str, one_of(frozenset(k.value for k in CheckpointKind))]
"""Why a state is kept."""


class Eviction(Message):
    """What the cache gave up, and which of it a prompt would have needed: plain, immutable values.

    Nothing here decides or remembers; engine/accounting.py does.

    One decision of the cache's policy.

    sequence: 1, 2, 3, ... over the engine's life. kind: checkpoint, tail, or pages (KV that no
    state needs). checkpoint_kind: why a state had been kept. tokens: from the prompt's start to its
    end. slabs: freed, a state's slot being one. score: what the policy held it to be worth, a page;
    None of one that goes by age. taken_by: the request that needed the room; None where a flush did
    or that request is gone.
    """

    sequence: int
    kind: Annotated[str, one_of(EVICTION_KINDS)]
    checkpoint_kind: CheckpointName | None
    tokens: Count32
    slabs: Extent
    score: Number | None
    taken_by: Shown | None


class EvictedCheckpoint(Message):
    """The deepest state of a prompt that was evicted.

    tokens: that it covered, whether or not all of them were lost with it. slabs_since: freed by
    its eviction and all later ones, so that an arena larger by as much had kept it, as far as
    evictions go by age. eviction: None where it is forgotten.
    """

    tokens: Count32
    slabs_since: Extent
    eviction: Eviction | None = None


class HitBreakdown(Message):
    """Where a prompt's tokens came from. usable + sum(causes) == prompt, on the node that computed
    it. lost: the evicted state that would have served it best. in_pages: the same as if the cache
    knew whole pages only (PageMatch); None where only this much was sent. template_changed_at: the
    first token that the conversation had otherwise the turn before; None where no cause is
    `template_changed`. loaded: of the usable ones, by tier, those that a load from below the arena
    made so."""

    prompt_tokens: Count32
    kv_tokens: Count32
    usable_tokens: Count32
    causes: Annotated[dict[str, int], each(CAUSES, count32)]
    checkpoint_source: CheckpointName | None
    lost: EvictedCheckpoint | None = None
    in_pages: "HitBreakdown | None" = None
    template_changed_at: Annotated[int, no_peers] | None = None
    loaded: Annotated[dict[str, int], each(TIERS, count32)] = field(default_factory=dict)


class TransferReport(Message):
    """One hand-over as the sender saw it, durations on its monotonic clock.

    hidden_seconds is transfer time that ran beside the forward, exposed_seconds what came after
    its end. timeline: both sides' tracks; None where only the sums were sent.
    """

    bytes: ByteCount
    windows: Count32
    pages: Count32
    hidden_seconds: Seconds
    exposed_seconds: Seconds
    timeline: HandoverTimeline | None = None


class PullReport(Message):
    """What the prefill node pulled before it computed: `tokens` of the prompt's beginning are those
    of which it then had KV and state. seconds: from the ask to the commit, on its clock. timeline:
    both sides' tracks; None where only the sums were sent, or not yet."""

    tokens: Count32
    bytes: ByteCount
    seconds: Seconds
    timeline: HandoverTimeline | None = None


class Choice(Enum):
    HERE = "here"
    THERE = "there"
    PULLED = "there, with a pull"


ESTIMATES = frozenset({"here", "there", "pull", "compute"})
"""Of what seconds are estimated: the prompt here and there, a pull, computing what was offered."""


class RouteReport(Message):
    """Why a prompt was computed where it was. choice: "here", "there" or "there, with a pull".
    estimates: seconds by what they are of: here, there (both of the whole prompt), pull, compute
    (of what was offered); empty where constants decided (engine/routing.py)."""

    choice: Annotated[str, one_of(frozenset(choice.value for choice in Choice))]
    estimates: Annotated[dict[str, float], each(ESTIMATES, long_seconds)]


class PrefillBid(Message):
    """What one prefill node would have cost a prompt. usable_tokens: of the prompt, as far as was
    known. prefill_seconds: of the rest of it. wait_seconds: before it; exposed_seconds: of a pull.
    cost: all of that, weighed (routing/node_choice.py)."""

    node: str
    address: str
    usable_tokens: int
    prefill_seconds: float
    wait_seconds: float
    exposed_seconds: float
    cost: float
    chosen: bool


class PrefillChoice(Message):
    """Why a prompt went to the prefill node that it went to. reason: as routing's Reason. bids: of
    the cheapest that were weighed and of the chosen one. weighed: how many. expected_tokens: of the
    prompt that were held to be usable there. regret_seconds: how much dearer the choice was than
    the best of the others, by what was known of these then and of the chosen one afterwards; 0
    where it was not. moved_from: the address of the node that had it before; empty where none
    had."""

    reason: str
    bids: tuple[PrefillBid, ...]
    weighed: int
    expected_tokens: int
    regret_seconds: float
    moved_from: str = ""


class DraftUse(Message):
    """Drafts of an answer from one source, counted by their place in a forward's drafts, the first
    one's first. source: prediction, mtp, tree or grammar. drafted: that were computed before they
    were drawn; accepted: of these the answer's."""

    source: str
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]


class Usage(Message):
    """What the client gets. hit is None only where the request ended before its prompt was
    scheduled.

    prefilled_on: "local", or the prefill node's name. local_fallback: a hand-over was lost and the
    prompt computed here instead. targets: None where nothing was said of them. drafted_tokens: that
    were computed before they were drawn; accepted_tokens: of these the answer's. The same of those
    that the request's prediction proposed; None without one. drafts: the same by source; none of a
    source that proposed nothing.
    """

    prompt_tokens: int
    completion_tokens: int
    hit: HitBreakdown | None
    transfer: TransferReport | None
    prefilled_on: str
    local_fallback: bool
    time_to_first_token: float
    seconds: float
    pulled: PullReport | None = None
    route: RouteReport | None = None
    prefill_choice: PrefillChoice | None = None
    targets: Targets | None = None
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None
    drafts: tuple[DraftUse, ...] = ()


class TimeSpread(Message):
    """counts[i]: of those at most bounds[i] seconds and more than the bound before; one more for
    what is longer. seconds: the sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    seconds: float


class StepReport(Message):
    """steps: from planning a forward to having landed the one before. idle: from the end of a
    forward to the start of the next, where the next was launched before the first had landed.
    drafts: steps of answers of which some may be drafted, by the most drafts of one."""

    steps: TimeSpread
    idle: TimeSpread
    drafts: Mapping[str, int]


class TierReport(Message):
    """A tier below the arena. slabs: free, and all. held: pages and slots that are of use. loads,
    writes: counters, by how they ended. bytes: of those that were of use, counters; loaded and
    written. moving: loads and writes under way, and writes that wait. dropped: pages and slots,
    counters. kept: of a tier that outlives its node, by what was done. On a disk: states that stood
    again at its start and those whose path was not whole, records that were torn, and those that
    it did not take. In a remote store: states that others may find from now on, and that were
    found there; manifests that were torn; requests that failed; lookups, and those that were
    late. budget_bytes: of a tier with a write budget: left, that may be written now, below 0 where
    a write took more than there were; a_second, that it is filled by."""

    name: str
    slab_bytes: int
    slabs: dict[str, int]
    held: dict[str, int]
    loads: dict[str, int]
    writes: dict[str, int]
    bytes: dict[str, int]
    moving: dict[str, int]
    dropped: dict[str, int]
    kept: dict[str, int] = field(default_factory=dict)
    budget_bytes: dict[str, int] = field(default_factory=dict)
