"""A hand-over, room by room, between an engine and its half of the control plane."""

from collections.abc import Mapping
from dataclasses import field

from tasuki.model.ops.sampling.params import SamplingParams, TopLogprobs
from tasuki.pycache.packed import PackedEvents
from tasuki.routing.node_load import PrefillSeconds
from tasuki.transfer.peer_values import Finite, Number
from tasuki.transfer.reports import HandoverTimeline

from .reports import HitBreakdown, PrefillChoice, PullReport, RouteReport, TransferReport
from .requests import LifeMark, Purpose
from .types import LossCause, Message, OfRoom, RequestError, RequestId, RoomId, Tokens


class Ticket(Message):
    """What the receiver gives with Reserve. kv_matched is KV it holds (page multiple), not usable
    state. offered: tokens of which it could give KV and the state at exactly their end; 0: none.
    caller, priority and message_end: as of Submit. due_seconds: until its first token is due, from
    now on; None: nobody said when."""

    room: RoomId
    generation: int
    kv_matched: int
    sampling: SamplingParams
    salt: bytes
    marks: tuple[int, ...] = ()
    offered: int = 0
    caller: str = ""
    priority: int = 0
    due_seconds: float | None = None
    message_end: int | None = None


class Grant(Message):
    """The receiver's page and slot ids. pages[i] is logical page first_page + i; fewer held than
    the ticket said is allowed (first_page rules), so that nothing is pinned while queued. slot:
    None, with no pages, where nothing but the first token is wanted."""

    room: RoomId
    generation: int
    first_page: int
    pages: tuple[int, ...]
    slot: int | None


class PrefillReserve(Message):
    """(prefill) Queue this prompt; answered by PrefillAccepted or PrefillRefused, and until then it
    is named by each PrefillQueue. peer: the decode node, by a name of its own; the rooms of
    different ones take turns."""

    ticket: Ticket
    prompt: Tokens
    peer: str = ""


class PrefillStart(Message):
    """(prefill) The receiver granted and a sender room is open: compute, tick, hand on."""

    grant: Grant


class PrefillEnd(Message):
    """(prefill) The room is over (committed, aborted or lost) and its sender has drained: let go.
    given_up: why this node ended it; None where it did not."""

    room: RoomId
    given_up: LossCause | None = None


class ReadUsable(Message):
    """(prefill) What the cache can resume prompts from, as far as it has changed since this was
    asked last; answered by UsableRead."""


class PeersChanged(Message):
    """(decode) Whether a prefill node is connected now; without one, prompts are prefilled
    locally."""

    prefill_available: bool


class PrefillBusy(Message):
    """(decode) How many seconds of prefill at least every prefill node has to do for other decode
    nodes."""

    others_wait_seconds: float


class GrantWanted(OfRoom):
    """(decode) The prefill node is about to start: allocation and answer HandoverGranted or
    HandoverDeclined."""


class RemoteReady(Message):
    """(decode) RemotePrefillReady: the first token, recorded by the prefill node's event loop.
    tail_seconds: until every window is flushed, as the sender expects; None where it has
    no estimate. prefill_choice: why that node."""

    room: RoomId
    token: int
    logprob: Finite
    margin: Number
    hit: HitBreakdown
    prefilled_on: str
    pulled: PullReport | None = None
    tail_seconds: float | None = None
    route: RouteReport | None = None
    top: TopLogprobs = ()
    prefill_choice: PrefillChoice | None = None


class RemoteDone(Message):
    """(decode) RemotePrefillDone: every window landed and every digest matched. pull: when what of
    the pull before happened; None without one."""

    room: RoomId
    transfer: TransferReport
    pull: HandoverTimeline | None = None


class EarlyStepEnded(Message):
    """(decode) A step that was begun behind the layer barrier touches nothing any more."""


class HandoverFailed(Message):
    """(decode) The hand-over failed; granted ids are quarantined until WriterFenced. elsewhere:
    another prefill node may be asked; otherwise the prompt is prefilled locally."""

    room: RoomId
    reason: str
    elsewhere: bool = False
    cause: LossCause = LossCause.STREAM


class WriterFenced(OfRoom):
    """(decode) The room's writer can write no more: quarantined ids of the room are free."""


class RoomEnded(Message):
    """(prefill) A room is over and drained. hit: None where its prompt was never looked up.
    handed_on: its prompt was computed to the end. given_up: as in PrefillEnd."""

    room: RoomId
    prompt_tokens: int
    hit: HitBreakdown | None
    handed_on: bool
    life: tuple[LifeMark, ...]
    given_up: LossCause | None = None


class PrefillQueue(Message):
    """Rooms that wait to be begun, in the order of their turns; emitted when it has changed."""

    rooms: tuple[RoomId, ...]


class PrefillQueued(Message):
    """Others are before this room, which has just come: of wait_seconds of prefill."""

    room: RoomId
    wait_seconds: float


class PrefillLoad(Message):
    """wait_seconds: of prefill that is left to do, of all rooms. seconds: of what a prefill takes
    here. pull: seconds of any pull and of each of its tokens; None where that is not known.
    stored_seconds: of prefill whose states were stored here, as NodeLoad counts them. waits: the
    parts of wait_seconds, by whose rooms they are (PrefillReserve.peer)."""

    wait_seconds: float
    seconds: PrefillSeconds
    pull: tuple[float, float] | None = None
    stored_seconds: float = 0.0
    waits: Mapping[str, float] = field(default_factory=dict)


class UsableRead(Message):
    """Events of the stream `usable`; the first answer is a snapshot. It also comes unasked, where
    others are about to look for what is new."""

    batch: PackedEvents


class PrefillAccepted(OfRoom):
    """About to start: the allocation is held, the grant is awaited."""


class PrefillRefused(Message):
    room: RoomId
    error: RequestError


class PrefillToken(Message):
    """The forward ended and the first token is recorded; windows may still be in flight."""

    room: RoomId
    token: int
    logprob: float
    margin: float
    hit: HitBreakdown
    pulled: PullReport | None = None
    route: RouteReport | None = None
    top: TopLogprobs = ()


class HandoverWanted(Message):
    """(decode) Reserve this prompt at a prefill node. sender: which one, where a gateway has named
    it of the room. session: which of this node's it continues, if any. purpose: of its request; of
    what is to be inherited no room is opened where a prefill node holds it (AlreadyHeld).
    may_fetch: whether FetchAdvised may answer it."""

    request_id: RequestId
    ticket: Ticket
    prompt: Tokens
    sender: str | None = None
    session: int | None = None
    purpose: Purpose = Purpose.ANSWER
    may_fetch: bool = False


class HandoverGranted(Message):
    grant: Grant


class HandoverDeclined(OfRoom):
    """(decode) No room for the grant now: abort the room; the request goes on without it."""


class HandoverCancelled(OfRoom):
    """(decode) The request was aborted: abort the room; ids granted stay quarantined until
    WriterFenced."""
