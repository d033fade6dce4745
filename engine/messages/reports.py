"""An engine's reports of finished work: evictions, hits, transfers, routes, steps.

A bound in a field's type is metadata, and applies to fields sent by a peer (transfer_proto.py).
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

from .pictures import PictureOutcome, PicturesReport, PictureStage
from .types import Message, Targets

TIERS = frozenset({"host", "disk"})
"""Names of the tiers below the arena."""
LOAD_FAILED = "load_failed"
"""Cause of tokens computed although a lower tier held them: the load was late or wrong. It comes
before the causes found by the prefix tree. Only the engine asking for the load sets it
(engine/accounting.py)."""
LOAD_DECLINED = "load_declined"
"""Cause of tokens computed although a lower tier held them: computing was cheaper than the load."""
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
"""Causes for a prompt token without usable cache, in the order of their tokens: from the last
usable token on, tokens of the first cause come first."""
CAUSES = frozenset(CAUSES_IN_ORDER)
NOT_PULLED = "not_pulled"
"""Cause of tokens computed on one node while another held their KV and state. It comes before the
causes found by the prefix tree. Only a comparison of both nodes' caches sets it
(engine/accounting.py)."""
TEMPLATE_CHANGED = "template_changed"
"""Cause of tokens counted as new by the prefix tree: the chat template renders an earlier turn
differently than in the last turn. No prefix tree can see this."""
EVICTION_KINDS = frozenset({"checkpoint", "tail", "pages"})
CheckpointName: TypeAlias = Annotated[str, one_of(frozenset(k.value for k in CheckpointKind))]
"""Reason for keeping a state in the cache, as a text (CheckpointKind's values)."""


class Eviction(Message):
    """One eviction decided by the cache's policy.

    sequence: number of the eviction, 1, 2, 3, ... over the engine's life. kind: the evicted thing:
    checkpoint, tail, or pages (KV needed by no state). checkpoint_kind: reason for having kept the
    evicted state. tokens: tokens from the prompt's start to the evicted end. slabs: freed slabs
    (fixed-size parts of the arena); a state's slot is one slab. score: the policy's estimated value
    per page; None if the policy evicts by age. taken_by: the request needing the memory; None for a
    flush or a forgotten request.
    """

    sequence: int
    kind: Annotated[str, one_of(EVICTION_KINDS)]
    checkpoint_kind: CheckpointName | None
    tokens: Count32
    slabs: Extent
    score: Number | None
    taken_by: Shown | None


class EvictedCheckpoint(Message):
    """The evicted state with the most tokens of a prompt.

    tokens: tokens covered by the state, even if the prompt kept some of them. slabs_since: slabs
    freed by its eviction and all later ones. An arena larger by this many slabs would still hold
    the state, as far as evictions go by age. eviction: the eviction of the state; None if its
    record is forgotten.
    """

    tokens: Count32
    slabs_since: Extent
    eviction: Eviction | None = None


class HitBreakdown(Message):
    """The origin of a prompt's tokens. usable_tokens + sum(causes) == prompt_tokens, on the node
    computing the prompt.

    lost: the evicted state of the greatest possible use. in_pages: the hit of a cache keeping whole
    pages only (PageMatch); None if not sent. template_changed_at: position of the first token
    different from the conversation's previous turn; None without the cause `template_changed`.
    loaded: usable tokens loaded from below the arena, by tier.
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
    """One hand-over as measured by the sender, with durations on its monotonic clock.

    hidden_seconds: transfer time during the prompt's forward. exposed_seconds: transfer time after
    the forward's end. timeline: events of sender and receiver; None if only the sums were sent.
    """

    bytes: ByteCount
    windows: Count32
    pages: Count32
    hidden_seconds: Seconds
    exposed_seconds: Seconds
    timeline: HandoverTimeline | None = None


class PullReport(Message):
    """A pull by the prefill node before it computed a prompt.

    tokens: first tokens of the prompt covered by KV and state after the pull. seconds: seconds from
    the request to the commit, on the prefill node's clock. timeline: events of sender and receiver;
    None if only the sums were sent, or not yet.
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
"""Names of the estimates, in seconds. here: the prompt on the decode node. there: the prompt on a
prefill node. pull: a pull. compute: computing the tokens offered for a pull."""


class RouteReport(Message):
    """The choice of the node to compute a prompt. choice: "here" (the decode node), "there" (a
    prefill node) or "there, with a pull".

    estimates: seconds by name: here and there (for the whole prompt), pull, compute (for the tokens
    offered for a pull). Empty if configured constants decided (engine/routing.py).
    """

    choice: Annotated[str, one_of(frozenset(choice.value for choice in Choice))]
    estimates: Annotated[dict[str, float], each(ESTIMATES, long_seconds)]


class PrefillBid(Message):
    """The estimated cost of a prompt at one prefill node.

    usable_tokens: tokens of the prompt usable at the node, as far as known. prefill_seconds:
    seconds to compute the other tokens. wait_seconds: seconds before the prefill begins.
    exposed_seconds: transfer seconds not overlapped by the prefill. cost: the weighted sum of these
    seconds (routing/node_choice.py).
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

    reason: as in routing's Reason. bids: bids of the cheapest compared nodes and of the chosen one.
    weighed: number of nodes compared. expected_tokens: tokens of the prompt expected to be usable
    at the chosen node. regret_seconds: the chosen node's measured cost minus the estimated cost of
    the best other node; 0 if not positive. moved_from: address of the previous prefill node; empty
    if none.
    """

    reason: str
    bids: tuple[PrefillBid, ...]
    weighed: int
    expected_tokens: int
    regret_seconds: float
    moved_from: str = ""


class DraftUse(Message):
    """Counts of an answer's draft tokens from one source; entry i counts drafts at position i of a
    forward's drafts. source: prediction, mtp, tree or grammar. drafted: drafts computed before
    their tokens were sampled. accepted: drafts in the answer."""

    source: str
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]


class Usage(Message):
    """The report of a finished request for its client.

    hit: the prompt's cache hit; None only if the request ended before its prompt was scheduled.
    prefilled_on: "local", or the prefill node's name. local_fallback: True if a hand-over was lost
    and the prompt was computed on this node instead. targets: the request's time limits; None if
    none were given. drafted_tokens: draft tokens computed before they were sampled.
    accepted_tokens: draft tokens in the answer. accepted_prediction_tokens,
    rejected_prediction_tokens: draft tokens from the request's prediction, in the answer and not in
    it; None without a prediction. drafts: drafted and accepted tokens by source; sources without
    proposals are left out. pictures: those of the prompt; None: it has none.
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
    pictures: PicturesReport | None = None


class TimeSpread(Message):
    """A histogram of durations.

    counts[i]: number of durations at most bounds[i] seconds and above bounds[i - 1]. The last entry
    counts durations above all bounds. seconds: the sum of the durations.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    seconds: float


FETCH_BOUNDS = (0.01, 0.03, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
NO_FETCHES = TimeSpread(FETCH_BOUNDS, (0,) * (len(FETCH_BOUNDS) + 1), 0.0)


class PictureCounts(Message):
    """Counts of a server's pictures since its start; those of several processes are added.

    refused: pictures refused by their part, address, bytes or header. fetches: seconds of
    addresses fetched, their waits included.
    """

    refused: int = 0
    fetches: TimeSpread = NO_FETCHES

    def __add__(self, other: "PictureCounts") -> "PictureCounts":
        ours, theirs = self.fetches, other.fetches
        counts = tuple(map(sum, zip(ours.counts, theirs.counts, strict=True)))
        fetches = TimeSpread(ours.bounds, counts, ours.seconds + theirs.seconds)
        return PictureCounts(self.refused + other.refused, fetches)


class PictureStats(Message):
    """Counters of an engine's pictures since its start.

    outcomes: pictures of prompts. seconds: of stages. row_bytes: of stored rows, by use: pinned
    (needed by a prompt), kept, free. media_bytes: of the picture files of requests in flight.
    decoders_lost: decoding processes that died.
    """

    outcomes: dict[PictureOutcome, int]
    seconds: dict[PictureStage, TimeSpread]
    row_bytes: dict[str, int]
    media_bytes: int
    decoders_lost: int


class StepReport(Message):
    """Times of steps.

    steps: durations from planning a forward to the end of the previous forward. idle: durations
    from a forward's end to the next one's start, for forwards launched before the previous one
    completed. drafts: numbers of steps with drafts allowed, by the largest number of drafts in one
    answer.
    """

    steps: TimeSpread
    idle: TimeSpread
    drafts: Mapping[str, int]


class TierReport(Message):
    """A tier below the arena.

    slabs: numbers of free slabs and of all slabs (fixed-size parts of the tier). held: numbers of
    pages and slots with useful content. loads, writes: numbers of loads and writes, by outcome.
    bytes: useful bytes loaded and written. moving: numbers of loads and writes under way, and of
    waiting writes. dropped: numbers of pages and slots dropped.

    kept: counters of a persistent tier, by action. On a disk: states restored at its start, states
    with an incomplete path, torn records, and records not accepted. In a remote store: states
    published for other nodes, states found there, torn manifests, failed requests, lookups, late
    lookups.

    budget_bytes: the write budget of a tier with one. left: bytes the tier may write now, below 0
    after a write beyond the budget. a_second: bytes added to the budget each second.
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
