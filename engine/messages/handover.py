"""Messages of hand-overs between an engine and its own node's control plane. Each hand-over is one
transfer."""

from collections.abc import Mapping
from dataclasses import field

from tasuki.model.ops.sampling.params import SamplingParams, TopLogprobs
from tasuki.pycache.keys import Keys
from tasuki.pycache.packed import PackedEvents
from tasuki.routing.node_load import PrefillSeconds
from tasuki.transfer.chunks.chunk import Destination
from tasuki.transfer.peer_values import Finite, Number
from tasuki.transfer.reports import HandoverTimeline

from .pictures import HandedPicture
from .reports import HitBreakdown, PrefillChoice, PullReport, RouteReport, TransferReport
from .requests import LifeMark, PromptPicture, Purpose
from .types import LossCause, Message, OfTransfer, RequestError, RequestId, TransferId


class TransferRequest(Message):
    """The receiver's part of Reserve, the request for a hand-over.

    kv_matched: tokens of the prompt with KV at the receiver, a multiple of the page size, even
    without a usable state. offered: first tokens of the prompt the receiver could send, with KV and
    the state at exactly their end; 0: none. marks: positions in the prompt to keep states at.
    caller, priority and message_end: as in Submit. due_seconds: seconds from now until the first
    token is due; None: no due time.
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
    """The destination granted by the receiver: its own page and slot ids.

    pages[i] is the receiver's page for logical page first_page + i. first_page: number of the
    prompt's first pages with KV at the receiver. It may be below the transfer request's kv_matched,
    because a queued transfer pins nothing. slot: the id for the state; None, with no pages, if only
    the first token is wanted.
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
    """(prefill) Queue this prompt for a hand-over. Answered by PrefillAccepted or PrefillRefused.
    Until then each PrefillQueue lists it. peer: a name of the asking decode node; the engine serves
    decode nodes in turn. pictures: of the prompt, by ascending place."""

    transfer_request: TransferRequest
    prompt: Keys
    peer: str = ""
    pictures: tuple[HandedPicture, ...] = ()


class PrefillStart(Message):
    """(prefill) Compute the prompt and send each layer chunk as it is done. The receiver has
    granted a destination and a sender is open."""

    grant: Grant


class PrefillEnd(Message):
    """(prefill) Release the transfer: it is over (committed, aborted or lost) and its sender has
    drained. given_up: the cause if this prefill node ended the transfer; else None."""

    transfer_id: TransferId
    given_up: LossCause | None = None


class ReadUsable(Message):
    """(prefill) Report the changes of the usable prefixes since the last ReadUsable. Answered by
    UsableRead."""


class PeersChanged(Message):
    """(decode) A change of the connected prefill nodes. prefill_available: True if at least one is
    connected now. Without one, prompts are prefilled locally."""

    prefill_available: bool


class PrefillBusy(Message):
    """(decode) A change of the prefill nodes' work. others_wait_seconds: seconds of prefill queued
    for other decode nodes, at the prefill node with the least."""

    others_wait_seconds: float


class GrantWanted(OfTransfer):
    """(decode) The prefill node is about to start this prompt: allocate memory for it. Answer
    HandoverGranted or HandoverDeclined."""


class RemoteReady(Message):
    """(decode) The first token, recorded by the prefill node's event loop (RemotePrefillReady).

    tail_seconds: the sender's estimate of seconds until every layer chunk is flushed; None without
    one. prefill_choice: the reason for choosing this prefill node.
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
    """(decode) Every layer chunk of the hand-over arrived and every digest matched
    (RemotePrefillDone). pull: timeline of the pull before the prefill; None without one."""

    transfer_id: TransferId
    transfer: TransferReport
    pull: HandoverTimeline | None = None


class EarlyStepEnded(Message):
    """(decode) A decode step begun before its prompt's last layers arrived has ended. It writes
    nothing more."""


class HandoverFailed(Message):
    """(decode) The hand-over failed. Its granted page and slot ids are quarantined until
    WriterFenced. elsewhere: True if another prefill node may be asked; otherwise the prompt is
    prefilled locally."""

    transfer_id: TransferId
    reason: str
    elsewhere: bool = False
    cause: LossCause = LossCause.STREAM


class WriterFenced(OfTransfer):
    """(decode) The transfer's writer can write no more, so its quarantined ids are free."""


class TransferEnded(Message):
    """(prefill) The end of a transfer, after its sender has drained.

    hit: the prompt's cache hit; None if it was never looked up. handed_on: True if the prompt was
    computed to its end. life: the request's phases with times. given_up: the cause if this prefill
    node ended the transfer; else None.
    """

    transfer_id: TransferId
    prompt_tokens: int
    hit: HitBreakdown | None
    handed_on: bool
    life: tuple[LifeMark, ...]
    given_up: LossCause | None = None


class PrefillQueue(Message):
    """The queued transfers not yet begun, the next one first. Emitted when their order changes."""

    transfers: tuple[TransferId, ...]


class PrefillQueued(Message):
    """A new transfer was queued. wait_seconds: seconds of prefill queued before it."""

    transfer_id: TransferId
    wait_seconds: float


class PrefillLoad(Message):
    """The prefill work left at this prefill node, and its estimated costs.

    wait_seconds: seconds of prefill left in all transfers. seconds: coefficients of a prompt's
    prefill time here. pull: fixed seconds of a pull, and seconds for each pulled token; None if
    unknown. stored_seconds: seconds of prefill spent on the states stored here, with less weight
    for older ones, as in NodeLoad. waits: each transfer owner's (PrefillReserve.peer) part of
    wait_seconds.
    """

    wait_seconds: float
    seconds: PrefillSeconds
    pull: tuple[float, float] | None = None
    stored_seconds: float = 0.0
    waits: Mapping[str, float] = field(default_factory=dict)


class UsableRead(Message):
    """The answer to ReadUsable: the cache's events of the stream `usable`. The first answer is a
    snapshot. Also sent unasked, when decode nodes are about to look for new states."""

    batch: PackedEvents


class PrefillAccepted(OfTransfer):
    """The prompt of this transfer is about to start: its memory is allocated and its destination is
    awaited."""


class PrefillRefused(Message):
    transfer_id: TransferId
    error: RequestError


class PrefillToken(Message):
    """The first token of a prompt, sent after its forward. Layer chunks may still be in flight."""

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

    sender: the prefill node named by a gateway for the transfer; None without a gateway. session:
    number of this node's session continued by the prompt, if any. purpose: the request's purpose. A
    request of purpose INHERIT opens no transfer if a prefill node already holds the state;
    AlreadyHeld answers it. may_fetch: True if FetchAdvised may be the answer. pictures: of the
    prompt, each with its file and source. encodes: each picture's end in the prompt, and its work
    in tokens of the prompt.
    """

    request_id: RequestId
    transfer_request: TransferRequest
    prompt: Keys
    sender: str | None = None
    session: int | None = None
    purpose: Purpose = Purpose.ANSWER
    may_fetch: bool = False
    pictures: tuple[PromptPicture, ...] = ()
    encodes: tuple[tuple[int, float], ...] = ()


class HandoverGranted(Message):
    grant: Grant


class HandoverDeclined(OfTransfer):
    """(decode) The node has no memory for the destination now: abort the transfer. The request
    continues without it."""


class HandoverCancelled(OfTransfer):
    """(decode) The request was aborted: abort its transfer. The transfer's page and slot ids stay
    quarantined until WriterFenced."""
