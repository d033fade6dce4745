"""An engine's reports of finished work: evictions, hits, transfers, routes, steps.

Plain, immutable values without decisions or memory. A bound in a field's type is metadata, and
applies to fields sent by a peer (transfer_proto.py).
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
"""Names of the tiers below the arena."""
LOAD_FAILED = "load_failed"
"""Cause of tokens whose load from a lower tier was late or wrong; it comes before the tree's
causes. Only the engine asking for the load sets it (engine/accounting.py)."""
LOAD_DECLINED = "load_declined"
"""Cause of tokens held by a tier but cheaper to compute."""
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
"""Causes for an unusable token of a prompt. The tree applies them in this order, from the last
usable token on."""
CAUSES = frozenset(CAUSES_IN_ORDER)
NOT_PULLED = "not_pulled"
"""Cause of tokens computed on one node while another held their KV and state; it comes before the
tree's causes. Only a comparison of both caches sets it (engine/accounting.py)."""
TEMPLATE_CHANGED = "template_changed"
"""Cause of tokens counted as new by the tree: the chat template renders an earlier turn differently
from the last turn. No tree can see this."""
EVICTION_KINDS = frozenset({"checkpoint", "tail", "pages"})
CheckpointName: TypeAlias = Annotated[str, one_of(frozenset(k.value for k in CheckpointKind))]
"""Reason for keeping a state."""


class Eviction(Message):
    """One eviction decided by the cache's policy.

    sequence: 1, 2, 3, ... over the engine's life. kind: checkpoint, tail, or pages (KV needed by no
    state). checkpoint_kind: why a state had been kept. tokens: from the prompt's start to the
    evicted end. slabs: freed, a state's slot being one. score: the policy's estimated value per
    page; None if it evicts by age. taken_by: the request needing the memory; None for a flush or a
    forgotten request.
    """

    sequence: int
    kind: Annotated[str, one_of(EVICTION_KINDS)]
    checkpoint_kind: CheckpointName | None
    tokens: Count32
    slabs: Extent
    score: Number | None
    taken_by: Shown | None


class EvictedCheckpoint(Message):
    """The deepest evicted state of a prompt.

    tokens: covered by it, whether or not all were lost with it. slabs_since: freed by its eviction
    and all later ones. An arena larger by as much had kept it, as far as evictions go by age.
    eviction: None if it is forgotten.
    """

    tokens: Count32
    slabs_since: Extent
    eviction: Eviction | None = None


class HitBreakdown(Message):
    """The origin of a prompt's tokens. usable + sum(causes) == prompt, on the node that computed
    it.

    lost: the evicted state with the greatest possible use. in_pages: the same if the cache knew
    whole pages only (PageMatch); None if only this much was sent. template_changed_at: the first
    token that differed in the conversation's previous turn; None without the cause
    `template_changed`. loaded: usable tokens made so by a load from below the arena, by tier.
    """

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
    """One hand-over as measured by the sender, durations on its monotonic clock.

    hidden_seconds: transfer time beside the forward. exposed_seconds: transfer time after its end.
    timeline: both sides' tracks; None if only the sums were sent.
    """

    bytes: ByteCount
    windows: Count32
    pages: Count32
    hidden_seconds: Seconds
    exposed_seconds: Seconds
    timeline: HandoverTimeline | None = None


class PullReport(Message):
    """A pull by the prefill node before it computed.

    tokens: first tokens of the prompt covered by KV and state after the pull. seconds: from the ask
    to the commit, on its clock. timeline: both sides' tracks; None if only the sums were sent, or
    not yet.
    """

    tokens: Count32
    bytes: ByteCount
    seconds: Seconds
    timeline: HandoverTimeline | None = None


class Choice(Enum):
    HERE = "here"
    THERE = "there"
    PULLED = "there, with a pull"


ESTIMATES = frozenset({"here", "there", "pull", "compute"})
"""Names of the estimates, in seconds: prompt here, prompt there, a pull, computing the offered
part."""


class RouteReport(Message):
    """The choice of the node that computed a prompt. choice: "here", "there" or "there, with a
    pull".

    estimates: seconds by name: here, there (both of the whole prompt), pull, compute (of the
    offered part). Empty if constants decided (engine/routing.py).
    """

    choice: Annotated[str, one_of(frozenset(choice.value for choice in Choice))]
    estimates: Annotated[dict[str, float], each(ESTIMATES, long_seconds)]


class PrefillBid(Message):
    """The estimated cost of a prompt at one prefill node.

    usable_tokens: tokens of the prompt usable there, as far as known. prefill_seconds: time to
    compute the rest. wait_seconds: time before it begins. exposed_seconds: transfer time not hidden
    by prefill. cost: the weighted sum (routing/node_choice.py).
    """

    node: str
    address: str
    usable_tokens: int
    prefill_seconds: float
    wait_seconds: float
    exposed_seconds: float
    cost: float
    chosen: bool


class PrefillChoice(Message):
    """The choice of a prefill node for a prompt.

    reason: as in routing's Reason. bids: of the cheapest weighed nodes and of the chosen one.
    weighed: number of nodes weighed. expected_tokens: tokens of the prompt expected to be usable
    there. regret_seconds: extra cost against the best other node, from the others' estimates then
    and the chosen node's measurement afterwards; 0 if none. moved_from: the address of the previous
    node; empty if none.
    """

    reason: str
    bids: tuple[PrefillBid, ...]
    weighed: int
    expected_tokens: int
    regret_seconds: float
    moved_from: str = ""


class DraftUse(Message):
    """Drafts of an answer from one source, counted by position in a forward's drafts, first
    position first. source: prediction, mtp, tree or grammar. drafted: drafts computed before their
    tokens were sampled. accepted: drafts in the answer."""

    source: str
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]


class Usage(Message):
    """The client's report. hit is None only if the request ended before its prompt was scheduled.

    prefilled_on: "local", or the prefill node's name. local_fallback: a hand-over was lost and the
    prompt computed here instead. targets: None if none were given. drafted_tokens: computed before
    they were sampled. accepted_tokens: drafted tokens in the answer. accepted_prediction_tokens,
    rejected_prediction_tokens: the same for the request's prediction; None without one. drafts: the
    same by source; sources without proposals are left out.
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
    """A histogram of durations.

    counts[i]: durations at most bounds[i] seconds and above the bound before; one more for longer
    ones. seconds: the sum.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    seconds: float


class StepReport(Message):
    """Times of steps.

    steps: from planning a forward to completing the one before. idle: from the end of a forward to
    the start of the next, if the next was launched before the first completed. drafts: steps of
    answers with drafts allowed, by the largest number of drafts in one answer.
    """

    steps: TimeSpread
    idle: TimeSpread
    drafts: Mapping[str, int]


class TierReport(Message):
    """A tier below the arena.

    slabs: free, and all. held: useful pages and slots. loads, writes: counters, by outcome. bytes:
    counters of useful bytes, loaded and written. moving: loads and writes under way, and waiting
    writes. dropped: pages and slots, counters.

    kept: counters of a persistent tier, by action. On a disk: states restored at its start, states
    with an incomplete path, torn records, and records not accepted. In a remote store: states
    published for other nodes, states found there, torn manifests, failed requests, lookups, late
    lookups.

    budget_bytes: of a tier with a write budget. left: bytes that may be written now, below 0 after
    a write beyond the budget. a_second: the rate of its refill.
    """

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
