"""What the engine loop and the world around it say to each other: plain, immutable messages.

Nothing here holds a tensor, a lock or a channel, so either side may be its own process. `Inbox`
messages go to the engine, `Outbox` messages come from it. A request is named by request_id at a
front and by room (a 63-bit id) in a hand-over; the decode engine knows both, the prefill engine
only rooms.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import NewType

import numpy as np
from numpy.typing import NDArray

from ..model.sampling import SamplingParams
from ..pycache._cpp_cache import EventBatch, TreeView
from ..transfer.timeline import HandoverTimeline
from .life import LifeMark
from .losses import Eviction, LostState
from .step_times import StepReport

RequestId = NewType("RequestId", str)
RoomId = NewType("RoomId", int)
Tokens = NDArray[np.int32]
NodeName = tuple[int, int]
"""Of a node of the cache's tree, as long as it lives."""


class FinishReason(Enum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class ErrorKind(Enum):
    """Why a request was refused or ended without an answer; fronts map each to one gRPC status."""

    INVALID = "invalid"
    TOO_LONG = "too_long"
    DRAINING = "draining"
    QUEUE_TIMEOUT = "queue_timeout"
    INTERNAL = "internal"


class LossCause(Enum):
    """Why a hand-over was lost."""

    REFUSED = "refused"
    NO_NODE = "no_node"
    NO_ROOM = "no_room"
    STREAM = "stream"
    MISSING = "missing"
    DIGEST = "digest"
    PROTOCOL = "protocol"
    STALLED = "stalled"
    QUEUE_TIMEOUT = "queue_timeout"


@dataclass(frozen=True)
class RequestError:
    kind: ErrorKind
    message: str


@dataclass(frozen=True)
class HitBreakdown:
    """Where a prompt's tokens came from. usable + sum(causes) == prompt, on the node that computed
    it. lost: the evicted state that would have served it best. in_pages: the same as if the cache
    knew whole pages only (PageMatch); None where only this much was told."""

    prompt_tokens: int
    kv_tokens: int
    usable_tokens: int
    causes: dict[str, int]
    checkpoint_source: str | None
    lost: LostState | None = None
    in_pages: "HitBreakdown | None" = None


@dataclass(frozen=True)
class TransferReport:
    """One hand-over as the sender saw it, durations on its monotonic clock.

    hidden_seconds is transfer time that ran beside the forward, exposed_seconds what came after
    its end. timeline: both sides' tracks; None where only the sums were told.
    """

    bytes: int
    windows: int
    pages: int
    hidden_seconds: float
    exposed_seconds: float
    timeline: HandoverTimeline | None = None


@dataclass(frozen=True)
class PullReport:
    """What the prefill node pulled before it computed: `tokens` of the prompt's beginning are those
    of which it then had KV and state. seconds: from the ask to the commit, on its clock. timeline:
    both sides' tracks; None where only the sums were told, or not yet."""

    tokens: int
    bytes: int
    seconds: float
    timeline: HandoverTimeline | None = None


@dataclass(frozen=True)
class RouteReport:
    """Why a prompt was computed where it was. choice: "here", "there" or "there, with a pull".
    estimates: seconds by what they are of: here, there (both of the whole prompt), pull, compute
    (of what was offered); empty where constants decided (engine/rates.py)."""

    choice: str
    estimates: dict[str, float]


@dataclass(frozen=True)
class Usage:
    """What the client is told. hit is None only where the request ended before its prompt was
    scheduled.

    prefilled_on: "local", or the prefill node's name. local_fallback: a hand-over was lost and the
    prompt computed here instead.
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


@dataclass(frozen=True)
class ToldRoom:
    """A room that a gateway made and told both nodes of. sender: HOST:PORT of the prefill node's
    gRPC server."""

    room: RoomId
    sender: str


@dataclass(frozen=True)
class Submit:
    """Generate from `prompt`. salt isolates tenants; cursor is a session's place in the tree.

    marks are token counts at which the client wants a checkpoint (role boundaries). session: what
    operators may call the conversation; the engine does not look at it. told: the room of its
    first hand-over, where a gateway made it.
    """

    request_id: RequestId
    prompt: Tokens
    sampling: SamplingParams
    salt: bytes = b""
    cursor: int | None = None
    marks: tuple[int, ...] = ()
    session: str | None = None
    told: ToldRoom | None = None


@dataclass(frozen=True)
class Abort:
    """Idempotent; answered by Finished(ABORT) where the request still lived, by nothing
    otherwise."""

    request_id: RequestId


@dataclass(frozen=True)
class OpenCursor:
    query_id: int
    salt: bytes = b""


@dataclass(frozen=True)
class ForkCursor:
    query_id: int
    cursor: int


@dataclass(frozen=True)
class CloseCursor:
    cursor: int


@dataclass(frozen=True)
class StatsQuery:
    query_id: int


@dataclass(frozen=True)
class CountersQuery:
    """As StatsQuery, in constant time: of a large cache `integrity` is what was found last."""

    query_id: int


@dataclass(frozen=True)
class FlushCache:
    query_id: int


@dataclass(frozen=True)
class WatchCache:
    """Tell changes of the cache from now on. `stream`: all, usable or spelled
    (HybridTree.watch)."""

    query_id: int
    stream: str


@dataclass(frozen=True)
class ReadEvents:
    """What changed since the last one. REQUIRES: the watch is open."""

    query_id: int
    watch: int


@dataclass(frozen=True)
class EndWatch:
    watch: int


@dataclass(frozen=True)
class TreeQuery:
    """The `limit` heaviest subtrees of what the cache holds, answered by TreeReply. `under`: below
    that node only. `prefix`: below the deepest node that holds KV of these tokens under `salt`."""

    query_id: int
    limit: int
    under: NodeName | None = None
    prefix: Tokens | None = None
    salt: bytes = b""


@dataclass(frozen=True)
class Drain:
    """Refuse new requests; answered once everything in flight has ended, or an Undrain came."""

    query_id: int


@dataclass(frozen=True)
class Undrain:
    """Take new requests again."""


@dataclass(frozen=True)
class Ticket:
    """What the receiver gives with Reserve. kv_matched is KV it holds (page multiple), not usable
    state. offered: tokens of which it could give KV and the state at exactly their end; 0: none."""

    room: RoomId
    generation: int
    kv_matched: int
    sampling: SamplingParams
    salt: bytes
    marks: tuple[int, ...] = ()
    offered: int = 0


@dataclass(frozen=True)
class Grant:
    """The receiver's page and slot ids. pages[i] is logical page first_page + i; fewer held than
    the ticket said is allowed (first_page rules), so that nothing is pinned while queued."""

    room: RoomId
    generation: int
    first_page: int
    pages: tuple[int, ...]
    slot: int


@dataclass(frozen=True)
class PullGrant:
    """The prefill node's page and slot ids for what the ticket offered. pages[i] is logical page
    first_page + i, up to the last page of `tokens`. generation: the prefill engine's own count."""

    room: RoomId
    generation: int
    tokens: int
    first_page: int
    pages: tuple[int, ...]
    slot: int


@dataclass(frozen=True)
class PullSource:
    """The decode node's ids that hold it, as PullGrant numbers them."""

    room: RoomId
    pages: tuple[int, ...]
    slot: int


@dataclass(frozen=True)
class PrefillReserve:
    """(prefill) Queue this prompt; answered by PrefillQueued*, then PrefillAccepted or
    PrefillRefused."""

    ticket: Ticket
    prompt: Tokens


@dataclass(frozen=True)
class PrefillStart:
    """(prefill) The receiver granted and a sender room is open: compute, tick, hand on."""

    grant: Grant


@dataclass(frozen=True)
class PrefillEnd:
    """(prefill) The room is over (committed, aborted or lost) and its sender has drained: let go.
    given_up: why this node ended it; None where it did not."""

    room: RoomId
    given_up: LossCause | None = None


@dataclass(frozen=True)
class PullCommitted:
    """(prefill) Every window of the pull landed and every digest matched."""

    room: RoomId
    report: PullReport


@dataclass(frozen=True)
class PullLost:
    """(prefill) The prompt is computed without it; granted ids are quarantined until
    PullFenced."""

    room: RoomId


@dataclass(frozen=True)
class PullFenced:
    """(prefill) The pull's writer can write no more: quarantined ids are free."""

    room: RoomId


@dataclass(frozen=True)
class PullAsked:
    """(decode) The prefill node pulls what the room's ticket offered: pin it; answered by
    PullPinned or PullRefused."""

    room: RoomId
    tokens: int
    first_page: int


@dataclass(frozen=True)
class PullEnd:
    """(decode) The pull is over and its sender has drained: let go."""

    room: RoomId


@dataclass(frozen=True)
class PeersChanged:
    """(decode) Whether a prefill node is connected now; without one, prompts are prefilled
    locally."""

    prefill_available: bool


@dataclass(frozen=True)
class GrantWanted:
    """(decode) The prefill node is about to start: lease and answer HandoverGranted or
    HandoverDeclined."""

    room: RoomId


@dataclass(frozen=True)
class RemoteReady:
    """(decode) RemotePrefillReady: the first token, recorded by the prefill node's event loop.
    tail_seconds: until every window is flushed, as the sender expects; None where it cannot
    tell."""

    room: RoomId
    token: int
    logprob: float
    margin: float
    hit: HitBreakdown
    prefilled_on: str
    pulled: PullReport | None = None
    tail_seconds: float | None = None
    route: RouteReport | None = None


@dataclass(frozen=True)
class RemoteDone:
    """(decode) RemotePrefillDone: every window landed and every digest matched. pull: when what of
    the pull before happened; None without one."""

    room: RoomId
    transfer: TransferReport
    pull: HandoverTimeline | None = None


@dataclass(frozen=True)
class EarlyStepEnded:
    """(decode) A step that was begun behind the layer barrier touches nothing any more."""


@dataclass(frozen=True)
class HandoverLost:
    """(decode) The hand-over failed; granted ids are quarantined until WriterFenced. elsewhere:
    another prefill node may be asked; otherwise the prompt is prefilled locally."""

    room: RoomId
    reason: str
    elsewhere: bool = False
    cause: LossCause = LossCause.STREAM


@dataclass(frozen=True)
class WriterFenced:
    """(decode) The room's writer can write no more: quarantined ids of the room are free."""

    room: RoomId


@dataclass(frozen=True)
class TokenOut:
    """margin: how far, in logits, the choice was from a tie (model/sampler.py)."""

    request_id: RequestId
    token: int
    logprob: float
    margin: float
    index: int


@dataclass(frozen=True)
class Finished:
    """life: the states that the request went through. hint: what the answer's end tells of the next
    turn (engine/turn_hint.py)."""

    request_id: RequestId
    reason: FinishReason
    usage: Usage
    life: tuple[LifeMark, ...] = ()
    hint: str = "unknown"


@dataclass(frozen=True)
class Rejected:
    request_id: RequestId
    error: RequestError


@dataclass(frozen=True)
class CursorOpened:
    query_id: int
    cursor: int


@dataclass(frozen=True)
class StatsReply:
    """pages, slots: free, working, tree, granted, quarantined, total, pinned. early: of steps
    behind the layer barrier (EarlyCounters), where this engine takes them. The rest are
    counters. policies: prefill tokens that each policy's shadow would have saved of late; empty
    without shadows. policy: the one that is followed. slab_pages: of one slab."""

    query_id: int
    pages: dict[str, int]
    slots: dict[str, int]
    slabs: dict[str, int]
    tree: dict[str, int]
    lost: dict[str, int]
    requests: dict[str, int]
    integrity: str = "ok"
    policy: str = ""
    policies: dict[str, float] = field(default_factory=dict)
    slab_pages: int = 1
    steps: StepReport | None = None
    early: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class FlushReply:
    query_id: int
    dropped: int


@dataclass(frozen=True)
class WatchOpened:
    query_id: int
    watch: int


@dataclass(frozen=True)
class EventsReply:
    query_id: int
    batch: EventBatch


@dataclass(frozen=True)
class TreeReply:
    """view: parents before children; None where what was asked for is not in the tree."""

    query_id: int
    view: TreeView | None


@dataclass(frozen=True)
class Drained:
    """at_rest: everything in flight has ended; else an Undrain came first."""

    query_id: int
    at_rest: bool = True


@dataclass(frozen=True)
class Evicted:
    """What the cache gave up since it was last told, oldest first."""

    evictions: tuple[Eviction, ...]


@dataclass(frozen=True)
class RoomEnded:
    """(prefill) A room is over and drained. hit: None where its prompt was never looked up.
    handed_on: its prompt was computed to the end. given_up: as in PrefillEnd."""

    room: RoomId
    prompt_tokens: int
    hit: HitBreakdown | None
    handed_on: bool
    life: tuple[LifeMark, ...]
    given_up: LossCause | None = None


@dataclass(frozen=True)
class PrefillQueued:
    room: RoomId
    position: int


@dataclass(frozen=True)
class PrefillAccepted:
    """About to start: the lease is held, the grant is awaited."""

    room: RoomId


@dataclass(frozen=True)
class PrefillRefused:
    room: RoomId
    error: RequestError


@dataclass(frozen=True)
class PrefillToken:
    """The forward ended and the first token is recorded; windows may still be in flight."""

    room: RoomId
    token: int
    logprob: float
    margin: float
    hit: HitBreakdown
    pulled: PullReport | None = None
    route: RouteReport | None = None


@dataclass(frozen=True)
class PullWanted:
    """(prefill) Ask the decode node for what the ticket offered, into these ids; answered by
    PullCommitted, or PullLost and then PullFenced."""

    grant: PullGrant


@dataclass(frozen=True)
class PullPinned:
    """(decode) Pinned and at rest: may be sent."""

    source: PullSource


@dataclass(frozen=True)
class PullRefused:
    """(decode) It is here no more."""

    room: RoomId
    reason: str


@dataclass(frozen=True)
class HandoverWanted:
    """(decode) Reserve this prompt at a prefill node. sender: which one, where a gateway has told
    it of the room."""

    request_id: RequestId
    ticket: Ticket
    prompt: Tokens
    sender: str | None = None


@dataclass(frozen=True)
class HandoverGranted:
    grant: Grant


@dataclass(frozen=True)
class HandoverDeclined:
    """(decode) No room for the grant now: abort the room; the request goes on without it."""

    room: RoomId


@dataclass(frozen=True)
class HandoverCancelled:
    """(decode) The request was aborted: abort the room; ids granted stay quarantined until
    WriterFenced."""

    room: RoomId


Inbox = (
    Submit
    | Abort
    | OpenCursor
    | ForkCursor
    | CloseCursor
    | StatsQuery
    | CountersQuery
    | FlushCache
    | WatchCache
    | ReadEvents
    | EndWatch
    | TreeQuery
    | Drain
    | Undrain
    | PrefillReserve
    | PrefillStart
    | PrefillEnd
    | PullCommitted
    | PullLost
    | PullFenced
    | PullAsked
    | PullEnd
    | PeersChanged
    | GrantWanted
    | RemoteReady
    | RemoteDone
    | EarlyStepEnded
    | HandoverLost
    | WriterFenced
)
Outbox = (
    TokenOut
    | Finished
    | Rejected
    | CursorOpened
    | StatsReply
    | FlushReply
    | WatchOpened
    | EventsReply
    | TreeReply
    | Drained
    | Evicted
    | RoomEnded
    | PrefillQueued
    | PrefillAccepted
    | PrefillRefused
    | PrefillToken
    | PullWanted
    | PullPinned
    | PullRefused
    | HandoverWanted
    | HandoverGranted
    | HandoverDeclined
    | HandoverCancelled
)
