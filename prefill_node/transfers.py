"""One transfer on the prefill node: sent (hand-over, copy, fetch) or received (pull). It connects
the peer's stream, the engine, and the sender or receiver.

Turns messages into events of the pure side (transfer/lifecycle/sending.py, receiving.py) and
performs its actions. Knows no gRPC. Thread rule: the event loop. Invariants of a sent transfer: the
engine is given PrefillEnd exactly once, after the sender drained (or gave up draining). The
receiver gets the end of the transfer exactly once, and nothing after it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tasuki.engine import messages as m
from tasuki.engine.messages import transfer_proto as wire
from tasuki.prefill_node.arriving_pictures import ArrivingPictures, MediaBudget
from tasuki.proto import handover_pb2 as pb
from tasuki.pycache.keys import Keys
from tasuki.transfer import peer_values
from tasuki.transfer.control.driven_transfer import ReceivingTransfer, SendingTransfer
from tasuki.transfer.control.writer_life import ConnectionBreaker, WriterLife
from tasuki.transfer.errors import PeerInvalid
from tasuki.transfer.failpoints import Place, reach
from tasuki.transfer.lifecycle import actions as do
from tasuki.transfer.lifecycle import events as on
from tasuki.transfer.lifecycle import messages as say
from tasuki.transfer.lifecycle.actions import Action
from tasuki.transfer.lifecycle.deadlines import PullReceiverDeadlines, SenderDeadlines
from tasuki.transfer.lifecycle.events import Event
from tasuki.transfer.lifecycle.receiving import Receiving, ReceivingTerms
from tasuki.transfer.lifecycle.sending import Sending, SendingTerms
from tasuki.transfer.lifecycle.states import COPY, FETCH, HANDOVER, PULL, Kind
from tasuki.transfer.protocol.messages import (
    SENDER_TRACK,
    chunks_from_wire,
    drain_from_wire,
    drain_to_wire,
)
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.reports import ChunkDigest, Drain, HandoverTimeline
from tasuki.transfer.sending.sender import Sender
from tasuki.utils.signatures import Notice

log = logging.getLogger(__name__)

Speak = Callable[[pb.SenderMessage], None]
"""Function sending a message on the transfer's stream, in order; it drops messages once the
transfer is closed."""


@dataclass(frozen=True)
class PullMeans:
    """Receiver, connection breaker and limits shared by the pulls of this node.

    deadlines: longest time without progress in each state. patience: limit in seconds for a lost
    pull to be fenced; after it the connection is given up.
    """

    receiver: Receiver
    breaker: ConnectionBreaker
    deadlines: PullReceiverDeadlines
    patience: float


class PullReceiver(ReceivingTransfer):
    """One pull on the prefill node: it receives a state from the decode node of a hand-over. It
    connects the hand-over's stream, the engine and the receiver.

    Performs the actions of the pure side (transfer/lifecycle/receiving.py). Outlives its hand-over,
    until it is committed or fenced. Thread rule: the event loop. Invariant: the engine is given
    exactly one of PullCommitted, or PullLost followed by PullFenced.
    """

    def __init__(
        self,
        grant: m.PullGrant,
        post: m.Post,
        shared: PullMeans,
        writer: WriterLife,
        give_up: Notice,
        speak: Speak,
    ) -> None:
        """grant: this node's destination for the pull. writer: evidence about the decode node as
        the writer. give_up: ends the connection to it. speak: sends on the hand-over's stream."""
        patience, deadlines = shared.patience, shared.deadlines
        terms = ReceivingTerms(deadlines, writer.terms(patience, patience))
        side = Receiving(PULL, grant.transfer_id, grant.generation, terms, time.monotonic())
        side.grant_first(say.Grant(grant.generation, grant.destination))
        name = f"the pull of transfer {grant.transfer_id}"
        super().__init__(side, shared.receiver, shared.breaker, writer, deadlines.landing, name, {})
        self.id = grant.transfer_id
        self._grant = grant
        self._post = post
        self._give_up = give_up
        self._speak = speak

    @property
    def chunks_arrived(self) -> int | None:
        """Return the number of arrived chunks; None once the pull is lost or has ended."""
        return None if self._side.is_lost or self.is_over else self.progress

    def take_message(self, message: pb.PullDone | pb.PullFailed) -> None:
        """Handle the decode node's message about this pull."""
        self.put(_heard(message))

    def act(self, action: Action) -> Event | None:
        match action:
            case do.Say(message=say.Ask()):
                self._speak(pb.SenderMessage(pull=wire.PULL.to_wire(self._grant)))
            case do.Say(message=say.StopPull()):
                stop = pb.StopPull(generation=self.generation)
                self._speak(pb.SenderMessage(stop_pull=stop))
            case do.Prepare(payload=done):
                return on.Prepared(self._report(done))
            case do.Commit(payload=report):
                self._post(m.PullCommitted(self.id, report))
            case do.TellLost():
                self._post(m.PullLost(self.id))
            case do.TellFenced():
                self._post(m.PullFenced(self.id))
            case do.GiveUp():
                log.warning("%s: no drain acknowledgement", self.name)
                self._give_up()
        return None

    def _report(self, done: pb.PullDone) -> m.PullReport:
        received = self._receiver.track(self.transfer_id, self._side.phases)
        timeline = HandoverTimeline(SENDER_TRACK.from_wire(done.report.track), received)
        seconds = received.phases[-1].at
        return m.PullReport(self._grant.tokens, done.report.bytes, seconds, timeline)


def _heard(message: pb.PullDone | pb.PullFailed) -> say.Message:
    generation = message.generation
    if isinstance(message, pb.PullFailed):
        return say.Ended(drain_from_wire(message.drain), message.reason, generation)
    try:
        return say.Done(generation, _sent(message), message)
    except PeerInvalid as error:
        return say.Contradiction(str(error))


def _sent(done: pb.PullDone) -> Sequence[ChunkDigest]:
    """Return the digests of the chunks sent by the decode node. Raises PeerInvalid naming the
    field."""
    peer_values.count(done.report.bytes, "report.bytes")
    return chunks_from_wire(done.windows)


BeginPull: TypeAlias = Callable[[m.PullGrant, str, Speak], PullReceiver | None]
FromEngine: TypeAlias = (
    m.PrefillQueued
    | m.PrefillAccepted
    | m.PrefillRefused
    | m.PrefillToken
    | m.FetchRefused
    | m.StateHeld
    | m.PullWanted
    | m.PicturesWanted
)


def kind_of(reserve: m.PrefillReserve | m.FetchReserve) -> Kind:
    if isinstance(reserve, m.FetchReserve):
        return FETCH
    # A room of one token behind the offered state is a copy.
    transfer_request = reserve.transfer_request
    is_copy = (
        transfer_request.sampling.max_new_tokens == 1
        and transfer_request.offered == len(reserve.prompt) - 1
    )
    return COPY if is_copy else HANDOVER


class OutgoingTransfer(SendingTransfer):
    def __init__(
        self,
        reserve: m.PrefillReserve | m.FetchReserve,
        connection: str,
        post: m.Post,
        sender: Sender,
        progress_seconds: float,
        begin_pull: BeginPull,
        speak: Speak,
        request_id: str = "",
        *,
        deadlines: SenderDeadlines | None = None,
        awaits_gateway: bool = False,
        media: MediaBudget | None = None,
    ) -> None:
        """progress_seconds: time between two repetitions of Queued, and between two checks of the
        deadlines. begin_pull: begins to pull the state offered in the transfer request; the pull
        outlives this transfer. speak: sends to the receiver, in order, up to Closed. request_id:
        request id known to the receiver's clients; empty if it sent none. awaits_gateway: True if
        nothing is computed before the gateway's call. media: budget of the pictures' bytes."""
        transfer_request = reserve.transfer_request
        terms = SendingTerms(deadlines or SenderDeadlines(), progress_seconds, awaits_gateway)
        side = Sending(
            kind_of(reserve),
            transfer_request.transfer_id,
            transfer_request.generation,
            terms,
            time.monotonic(),
        )
        named: dict[str, str | int] = {
            "request_id": request_id,
            "room": transfer_request.transfer_id,
        }
        super().__init__(
            side, connection, sender, f"transfer {transfer_request.transfer_id}", named
        )
        self.id = transfer_request.transfer_id
        self.ended: asyncio.Future[Drain] = asyncio.get_running_loop().create_future()
        self._reserve = reserve
        self._post = post
        self._begin_pull = begin_pull
        self._speak = speak
        self._pull: PullReceiver | None = None
        self._pulled: m.PullReport | None = None
        self._media = MediaBudget() if media is None else media
        self._arriving: ArrivingPictures | None = None
        """Pictures asked for and not complete; None without any."""
        self._pieces = 0

    @property
    def prompt(self) -> Keys:
        return self._reserve.prompt

    def facts(self) -> on.Look:
        pulled = None if self._pull is None else self._pull.chunks_arrived
        return on.Look(self.progress, pulled, pieces=self._pieces)

    def hear_engine(self, message: FromEngine) -> None:
        """Handle a message of the engine about this transfer."""
        self.put(self._event_of(message))

    def _event_of(self, message: FromEngine) -> Event:
        match message:
            case m.PrefillAccepted():
                return on.Leased()
            case m.PrefillQueued(wait_seconds=seconds):
                return on.Waits(seconds)
            case m.PrefillRefused(error=error):
                is_late = error.kind is m.ErrorKind.QUEUE_TIMEOUT
                return on.Refusal(error.message, is_late, wire.refused(error))
            case m.FetchRefused(refusal=refusal):
                return on.Refusal(refusal.value, payload=wire.fetch_refused(refusal))
            case m.StateHeld():
                return on.Announced()
            case m.PullWanted(grant=grant):
                return on.PullWanted(grant)
            case m.PicturesWanted(pictures=wanted):
                assert isinstance(self._reserve, m.PrefillReserve)
                handed = self._reserve.pictures
                self._arriving = ArrivingPictures(self.id, wanted, handed, self._media)
                return on.MediaWanted(wanted)
        self._pulled = message.pulled
        tail = self._sender.remaining_seconds(self.transfer_id)
        return on.Announced(wire.ready(self.generation, message, tail))

    def begin_pictures(self) -> bool:
        """Return True if a call with the pictures asked for may begin now, as the first one."""
        arriving = self._arriving
        if arriving is None or arriving.begun or self.is_over:
            return False
        arriving.begun = True
        return True

    def take_piece(self, piece: pb.PicturePiece) -> bool:
        """Take a piece of the pictures asked for. Return True if it was the last. Raises
        PeerInvalid. REQUIRES: begin_pictures() was True."""
        arriving = self._arriving
        if arriving is None or self.is_over:
            raise PeerInvalid("the transfer is over")
        reach(Place.SENDER_ON_PIECE)
        arriving.take(piece)
        self._pieces += 1
        if not arriving.is_complete:
            return False
        self._arriving = None
        self.put(on.MediaCame(arriving.files()))
        return True

    def hear_pull(self, message: pb.PullDone | pb.PullFailed) -> None:
        """Handle the receiver's message about this hand-over's pull; drop it if there is no
        pull."""
        if self._pull is not None:
            self._pull.take_message(message)

    def act(self, action: Action) -> Event | None:
        match action:
            case do.Say(message=message):
                self._say(message)
            case do.Reserve():
                self._post(self._reserve)
            case do.Start(payload=grant):
                self._post(m.PrefillStart(grant))
            case do.TakeMedia(payload=files):
                self._post(m.PicturesCame(self.id, files))
            case do.BeginPull(payload=grant):
                self._pull = self._begin_pull(grant, self.connection, self._speak)
            case do.EndPull(reason=reason):
                if self._pull is not None:
                    self._pull.put(on.Stopped(reason))
        return None

    def perform(self, action: Action) -> Event | None:
        if isinstance(action, do.Open):
            reach(Place.SENDER_ON_GRANT)
        return super().perform(action)

    def _say(self, message: say.Message) -> None:
        match message:
            case say.Accepted():
                self._speak(pb.SenderMessage(accepted=pb.Accepted()))
            case say.Queued(position=position, wait=wait):
                queued = pb.Queued(position=position, wait_seconds=wait)
                self._speak(pb.SenderMessage(queued=queued))
            case say.MediaWanted(payload=wanted):
                asked = pb.PicturesWanted(generation=self.generation, pictures=wanted)
                self._speak(pb.SenderMessage(pictures_wanted=asked))
            case say.Refused(payload=said) | say.Ready(payload=said):
                self._speak(said)
            case say.Held(generation=generation):
                self._speak(pb.SenderMessage(held=pb.Held(generation=generation)))
            case say.Done(payload=(report, track)):
                pull = None if self._pulled is None else self._pulled.timeline
                self._speak(wire.done(self.generation, report, track, pull))
            case say.Ended(drain=drain, reason=None):
                aborted = pb.Aborted(drain=drain_to_wire(drain))
                self._speak(pb.SenderMessage(aborted=aborted))
            case say.Ended(drain=drain, reason=reason):
                failed = pb.Failed(reason=reason, drain=drain_to_wire(drain))
                self._speak(pb.SenderMessage(failed=failed))

    def closed(self) -> None:
        """Report the transfer's end: end the pull, and set how the posted writes ended. Post
        PrefillEnd to the engine if the state machine is over; else the drain counts as FORCED."""
        drain = self._side.drain if self._side.is_over else Drain.FORCED
        self._media.release(self.id)
        if self._pull is not None:
            self._pull.put(on.Stopped("its transfer is over"))
        if self._side.is_over:
            cause = self._side.given_up
            given_up = None if cause is None else m.LossCause[cause.name]
            self._post(m.PrefillEnd(self.id, given_up))
        self.ended.set_result(drain)

    def close(self) -> None:
        """Send Closed, the last message of an ended transfer."""
        self._speak(pb.SenderMessage(closed=pb.Closed()))
