"""Messages of a hand-over, one transfer each, between an engine and its half of the control
plane."""

from collections.abc import Mapping
from dataclasses import field

from tasuki.model.ops.sampling.params import SamplingParams, TopLogprobs
from tasuki.pycache.keys import Keys
from tasuki.pycache.packed import PackedEvents
from tasuki.routing.node_load import PrefillSeconds
from tasuki.transfer.chunks.chunk import Destination
from tasuki.transfer.peer_values import Finite, Number
from tasuki.transfer.reports import HandoverTimeline

from .reports import HitBreakdown, PrefillChoice, PullReport, RouteReport, TransferReport
from .requests import LifeMark, Purpose
from .types import LossCause, Message, OfTransfer, RequestError, RequestId, TransferId


class TransferRequest(Message):
    """The receiver's part of Reserve.

    kv_matched: tokens of KV held by the receiver (page multiple), not usable state. offered: tokens
    it could give with KV and the state at exactly their end; 0: none. caller, priority and
    message_end: as in Submit. due_seconds: seconds from now until the first token is due; None: no
    due time.
    """

    transfer_id: TransferId
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
    """The receiver's page and slot ids.

    pages[i] is logical page first_page + i. The receiver may hold fewer tokens than the transfer
    request said (first_page rules), because nothing is pinned while queued. slot: None, with no
    pages, if only the first token is wanted.
    """

    transfer_id: TransferId
    generation: int
    first_page: int
    pages: tuple[int, ...]
    slot: int | None

    @property
    def destination(self) -> Destination:
        return Destination(self.first_page, self.pages, self.slot)


class PrefillReserve(Message):
    """(prefill) Queue this prompt. Answered by PrefillAccepted or PrefillRefused; until then each
    PrefillQueue names it. peer: the decode node, by a name of its own; different nodes take
    turns."""

    transfer_request: TransferRequest
    prompt: Keys
    peer: str = ""


class PrefillStart(Message):
    """(prefill) The receiver gave a destination and a sender is open: compute, tick, hand on."""

    grant: Grant


class PrefillEnd(Message):
    """(prefill) Release the transfer: it is over (committed, aborted or lost) and its sender has
    drained. given_up: the cause if this node ended it; else None."""

    transfer_id: TransferId
    given_up: LossCause | None = None


class ReadUsable(Message):
    """(prefill) Report the changes since the last query of the usable prefixes; answered by
    UsableRead."""


class PeersChanged(Message):
    """(decode) A prefill node is connected now, or none is. Without one, prompts are prefilled
    locally."""

    prefill_available: bool


class PrefillBusy(Message):
    """(decode) Least seconds of prefill left at every prefill node for other decode nodes."""

    others_wait_seconds: float


class GrantWanted(OfTransfer):
    """(decode) The prefill node is about to start: allocate, and answer HandoverGranted or
    HandoverDeclined."""


class RemoteReady(Message):
    """(decode) RemotePrefillReady: the first token, recorded by the prefill node's event loop.

    tail_seconds: the sender's estimate until every layer chunk is flushed; None without one.
    prefill_choice: the reason for choosing this prefill node.
    """

    transfer_id: TransferId
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
    """(decode) RemotePrefillDone: every layer chunk arrived and every digest matched. pull:
    timeline of the pull before; None without one."""

    transfer_id: TransferId
    transfer: TransferReport
    pull: HandoverTimeline | None = None


class EarlyStepEnded(Message):
    """(decode) A step begun behind the layer barrier has ended and writes nothing more."""


class HandoverFailed(Message):
    """(decode) The hand-over failed; granted ids are quarantined until WriterFenced. elsewhere:
    another prefill node may be asked; otherwise the prompt is prefilled locally."""

    transfer_id: TransferId
    reason: str
    elsewhere: bool = False
    cause: LossCause = LossCause.STREAM


class WriterFenced(OfTransfer):
    """(decode) The transfer's writer can write no more: its quarantined ids are free."""


class TransferEnded(Message):
    """(prefill) The end of a transfer, after its drain.

    hit: None if its prompt was never looked up. handed_on: its prompt was computed to the end.
    given_up: as in PrefillEnd.
    """

    transfer_id: TransferId
    prompt_tokens: int
    hit: HitBreakdown | None
    handed_on: bool
    life: tuple[LifeMark, ...]
    given_up: LossCause | None = None


class PrefillQueue(Message):
    """Transfers waiting to be begun, in the order of their turns; emitted when the order
    changes."""

    transfers: tuple[TransferId, ...]


class PrefillQueued(Message):
    """Other transfers come before this new one, with wait_seconds of prefill."""

    transfer_id: TransferId
    wait_seconds: float


class PrefillLoad(Message):
    """Seconds of prefill left here, and the costs of a prefill.

    wait_seconds: seconds of prefill left in all transfers. seconds: coefficients of a prefill's
    time here. pull: seconds of any pull, and of each token pulled; None if unknown. stored_seconds:
    seconds of prefill for states stored here, counted as in NodeLoad. waits: parts of wait_seconds
    by transfer owner (PrefillReserve.peer).
    """

    wait_seconds: float
    seconds: PrefillSeconds
    pull: tuple[float, float] | None = None
    stored_seconds: float = 0.0
    waits: Mapping[str, float] = field(default_factory=dict)


class UsableRead(Message):
    """Events of the stream `usable`; the first answer is a snapshot. Also sent unasked, when decode
    nodes are about to look for new states."""

    batch: PackedEvents


class PrefillAccepted(OfTransfer):
    """About to start: the allocation is held, the destination is awaited."""


class PrefillRefused(Message):
    transfer_id: TransferId
    error: RequestError


class PrefillToken(Message):
    """The forward ended and the first token is recorded; layer chunks may still be in flight."""

    transfer_id: TransferId
    token: int
    logprob: float
    margin: float
    hit: HitBreakdown
    pulled: PullReport | None = None
    route: RouteReport | None = None
    top: TopLogprobs = ()


class HandoverWanted(Message):
    """(decode) Reserve this prompt at a prefill node.

    sender: the prefill node named for the transfer by a gateway. session: this node's session
    continued by the prompt, if any. purpose: the request's purpose. For INHERIT no transfer is
    opened if a prefill node holds the state (AlreadyHeld). may_fetch: FetchAdvised may answer this.
    """

    request_id: RequestId
    transfer_request: TransferRequest
    prompt: Keys
    sender: str | None = None
    session: int | None = None
    purpose: Purpose = Purpose.ANSWER
    may_fetch: bool = False


class HandoverGranted(Message):
    grant: Grant


class HandoverDeclined(OfTransfer):
    """(decode) No memory for the destination now: abort the transfer; the request continues without
    it."""


class HandoverCancelled(OfTransfer):
    """(decode) The request was aborted: abort the transfer. Granted ids stay quarantined until
    WriterFenced."""
