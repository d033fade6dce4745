"""Transfers of prefill nodes writing into this decode node: hand-overs, copies and fetches.

Connects the prefill node's stream, the engine and the receiver. Turns messages into events of the
pure side (transfer/lifecycle/receiving.py) and performs its actions. Decides if a prompt moves to
another node, and rates the accuracy of a prefill node's list of prefixes. Thread rule: the event
loop.

Invariants: every transfer with granted memory ends in exactly one way: by RemoteDone, or by its
loss followed by WriterFenced. The loss is not posted if the engine cancelled.
"""

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

from tasuki.decode_node.config import HandoverSettings
from tasuki.decode_node.prefill_connection import PrefillConnection
from tasuki.decode_node.prefill_links import PrefillLink
from tasuki.decode_node.prefill_router import Chosen
from tasuki.decode_node.sent_pictures import PicturesNotSent, send_pictures
from tasuki.engine import messages as m
from tasuki.engine.messages import transfer_proto as wire
from tasuki.engine.messages.picture_wire import runs_to_wire, wanted_from_wire
from tasuki.proto import handover_pb2 as pb
from tasuki.transfer.chunks.chunk import FinishedLayers
from tasuki.transfer.control.driven_transfer import ReceivingTransfer, SendingTransfer
from tasuki.transfer.control.writer_life import ConnectionBreaker
from tasuki.transfer.errors import PeerInvalid
from tasuki.transfer.failpoints import Place, reach
from tasuki.transfer.lifecycle import actions as do
from tasuki.transfer.lifecycle import events as on
from tasuki.transfer.lifecycle import messages as say
from tasuki.transfer.lifecycle.actions import Action, Loss
from tasuki.transfer.lifecycle.deadlines import PullSenderDeadlines
from tasuki.transfer.lifecycle.events import Event
from tasuki.transfer.lifecycle.receiving import Receiving, ReceivingTerms
from tasuki.transfer.lifecycle.sending import Sending, SendingTerms
from tasuki.transfer.lifecycle.states import COPY, FETCH, HANDOVER, PULL, Kind, ReceiverState
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.sending.sender import Sender

log = logging.getLogger(__name__)


class PullSender(SendingTransfer):
    """One pull on the decode node: it sends a state to the prefill node computing a hand-over. It
    connects the hand-over's stream, the engine and the sender.

    Performs the actions of the pure side (transfer/lifecycle/sending.py). Outlives its hand-over,
    until it has drained. Its messages use the hand-over's stream. Its drain is reported also in the
    connection's renewals. Thread rule: the event loop. Invariants: the engine is given PullEnd
    exactly once, after the drain. The connection reports the drain exactly once, independent of the
    stream.
    """

    def __init__(
        self,
        grant: m.PullGrant,
        asked_in: "IncomingTransfer",
        post: m.Post,
        sender: Sender,
        deadlines: PullSenderDeadlines,
    ) -> None:
        """grant: the prefill node's destination, and the wanted tokens. asked_in: transfer of the
        hand-over pulling."""
        terms = SendingTerms(deadlines, deadlines.look)
        side = Sending(PULL, grant.transfer_id, grant.generation, terms, time.monotonic())
        side.target(grant.destination)
        super().__init__(
            side, asked_in.connection.id, sender, f"pull of transfer {grant.transfer_id}", {}
        )
        self.id = grant.transfer_id
        self._grant = grant
        self._post = post
        self._asked_in = asked_in

    @property
    def chunks_sent(self) -> int | None:
        """Return a count; it grows as chunks are planned or flushed. Return None once the pull has
        ended."""
        return None if self.is_over else self.progress

    def act(self, action: Action) -> Event | None:
        grant = self._grant
        match action:
            case do.Reserve():
                self._post(m.PullAsked(self.id, grant.tokens, grant.first_page))
            case do.Plan(payload=source):
                first = grant.first_page
                plan = FinishedLayers.long_finished(first, source.pages, source.slot)
                self._sender.plan_forward(self.transfer_id, plan)
            case do.Say(message=say.Done(payload=(report, track))):
                self._asked_in.speak(wire.pull_done(self.generation, report, track))
            case do.Say(message=say.Ended(drain=drain, reason=reason)):
                log.info("%s: %s", self.name, reason)
                self._asked_in.speak(wire.pull_failed(self.generation, reason or "", drain))
        return None

    def closed(self) -> None:
        if not self._side.is_over:
            # It was dropped, and the bytes in flight are unknown.
            return
        self._post(m.PullEnd(self.id))
        self._asked_in.connection.drained(self.transfer_id, self.generation, self._side.drain)


def event_of(message: m.PullPinned | m.PullRefused) -> Event:
    """Return the event for a pull's state machine from the engine's answer to PullAsked: Pinned for
    PullPinned, else Refusal."""
    if isinstance(message, m.PullPinned):
        return on.Pinned(message.source)
    return on.Refusal(message.reason)


_BEFORE = MappingProxyType(
    {
        do.WantGrant: Place.RECEIVER_ON_ACCEPTED,
        do.Expect: Place.RECEIVER_ON_GRANT,
        do.TellReady: Place.RECEIVER_ON_READY,
        do.TellHeld: Place.RECEIVER_ON_READY,
        do.Verify: Place.RECEIVER_BEFORE_VERIFY,
    }
)
"""Failpoint reached before an action, by the action's type."""
_NO_REQUEST = m.RequestId("")
_OUTCOMES = MappingProxyType(
    {
        Loss.NO_ROOM: m.FetchOutcome.NO_ROOM,
        Loss.QUEUE_TIMEOUT: m.FetchOutcome.LATE,
    }
)

BeginPull: TypeAlias = Callable[[m.PullGrant, "IncomingTransfer"], PullSender]


@dataclass(frozen=True)
class SharedMeans:
    """Receiver, connection breaker and settings shared by the transfers of this node."""

    receiver: Receiver
    breaker: ConnectionBreaker
    settings: HandoverSettings


class IncomingTransfer(ReceivingTransfer):
    def __init__(
        self,
        kind: Kind,
        transfer_request: m.TransferRequest | m.FetchRequest,
        link: PrefillLink,
        connection: PrefillConnection,
        shared: SharedMeans,
        post: m.Post,
        request_id: m.RequestId = _NO_REQUEST,
        within: float | None = None,
    ) -> None:
        """request_id: request of the transfer's prompt. within: limit of the whole transfer in
        seconds; None: no limit of its own. REQUIRES: the connection belongs to the link and is
        alive."""
        settings = shared.settings
        fence = connection.writer.terms(settings.acknowledge, settings.patience)
        terms = ReceivingTerms(settings.deadlines, fence, within)
        side = Receiving(
            kind, transfer_request.transfer_id, transfer_request.generation, terms, time.monotonic()
        )
        name = f"{'fetch' if kind is FETCH else 'room'} {transfer_request.transfer_id}"
        super().__init__(
            side,
            shared.receiver,
            shared.breaker,
            connection.writer,
            settings.landing,
            name,
            {"request_id": request_id},
        )
        self.post = post
        self.id = transfer_request.transfer_id
        self.request_id = request_id
        self.connection = connection
        self._link = link
        self._settings = settings
        self._stream = connection.stream()
        self._stream.join(self)

    @abstractmethod
    def opening(self) -> pb.ReceiverMessage:
        """Return the first message of the transfer: Reserve or Fetch."""

    @abstractmethod
    def answer(self, action: Action) -> None:
        """Perform an action telling the engine of the transfer: ready, rejected, lost, or one of
        its pull."""

    def receive(self, message: pb.SenderMessage) -> None:
        self.put(wire.read_message(self.id, message, self.connection.node.name))

    def stream_broke(self, reason: str) -> None:
        self.put(on.StreamBroke(reason))

    def speak(self, message: pb.ReceiverMessage) -> None:
        """Send a message on the transfer's stream, in order; drop it once the transfer has
        ended."""
        self._stream.say(self, message)

    def act(self, action: Action) -> Event | None:
        match action:
            case do.Say(message=message):
                self._say(message)
            case do.WantGrant():
                self.post(m.GrantWanted(self.id))
            case do.Prepare(payload=done):
                track = self._receiver.track(self.transfer_id, self._side.phases)
                report = wire.done_from_wire(self.id, done, track)
                reach(Place.RECEIVER_BEFORE_COMMIT)
                return on.Prepared(report)
            case do.Commit(payload=report):
                self.post(report)
                reach(Place.RECEIVER_AFTER_COMMIT)
            case do.TellFenced():
                self.post(m.WriterFenced(self.id))
            case do.CallForDrain():
                self.run(self._call_for_drain)
            case do.GiveUp():
                log.warning("%s: no drain acknowledgement", self.name)
                self.connection.end()
            case _:
                self.answer(action)
        return None

    def perform(self, action: Action) -> Event | None:
        if (place := _BEFORE.get(type(action))) is not None:
            reach(place)
        return super().perform(action)

    def _say(self, message: say.Message) -> None:
        match message:
            case say.Ask():
                reach(Place.RECEIVER_BEFORE_RESERVE)
                self.speak(self.opening())
            case say.Grant(payload=granted):
                self.speak(pb.ReceiverMessage(grant=wire.GRANT.to_wire(granted)))
            case say.Abort():
                self.speak(pb.ReceiverMessage(abort=pb.Abort(generation=self.generation)))

    async def _call_for_drain(self) -> None:
        drain = await self._link.abort(
            self.connection, self.transfer_id, self.generation, self._settings.acknowledge
        )
        self.put(on.DrainAnswered(drain))

    def closed(self) -> None:
        super().closed()
        if self._side.state is ReceiverState.COMMITTED:
            self._stream.part(self)
        else:
            self._stream.leave(self)


class IncomingHandover(IncomingTransfer):
    def __init__(
        self,
        wanted: m.HandoverWanted,
        chosen: Chosen,
        shared: SharedMeans,
        post: m.Post,
        begin_pull: BeginPull,
        traceparent: str = "",
    ) -> None:
        """chosen: the chosen prefill node, with the reason. begin_pull: begins to send a pull for
        this hand-over; the pull outlives it. traceparent: the request's trace context; empty if it
        has none. REQUIRES: the connection is alive."""
        super().__init__(
            HANDOVER if wanted.purpose is m.Purpose.ANSWER else COPY,
            wanted.transfer_request,
            chosen.link,
            chosen.connection,
            shared,
            post,
            wanted.request_id,
        )
        self._wanted = wanted
        self._chosen = chosen
        self._arrived = 0
        self._pieces = 0
        self._begin_pull = begin_pull
        self._pull: PullSender | None = None
        self._traceparent = traceparent

    def opening(self) -> pb.ReceiverMessage:
        message = wire.reserve(self._wanted, self._traceparent)
        message.reserve.pictures.extend(runs_to_wire(self._wanted.pictures))
        return message

    def receive(self, message: pb.SenderMessage) -> None:
        if message.WhichOneof("message") != "pictures_wanted":
            super().receive(message)
            return
        wanted, count = message.pictures_wanted, len(self._wanted.pictures)
        try:
            self.put(say.MediaWanted(wanted_from_wire(wanted, self.generation, count)))
        except PeerInvalid as error:
            self.put(say.Contradiction(str(error)))

    def facts(self) -> on.Look:
        arrived = self.progress
        self.connection.arrived += max(0, arrived - self._arrived)
        self._arrived = arrived
        pulled = None if self._pull is None else self._pull.chunks_sent
        others = self.connection.arrived
        return on.Look(arrived, pulled, others, self._pieces, self.writer.facts())

    def answer(self, action: Action) -> None:
        match action:
            case do.NoteWait():
                self._note_wait(action)
            case do.SendMedia(payload=indices):
                self.run(partial(self._send_pictures, indices))
            case do.ServePull(payload=grant):
                self._pull = self._begin_pull(grant, self)
            case do.EndPull(reason=reason):
                if self._pull is not None:
                    self._pull.put(on.Stopped(reason))
            case do.TellReady(payload=remote):
                self._ready(remote)
            case do.TellRefused(payload=failed):
                self.post(failed)
            case do.TellLost(reason=reason, loss=loss):
                cause = m.LossCause[loss.name]
                self.post(m.HandoverFailed(self.id, reason, cause=cause))

    async def _send_pictures(self, indices: Sequence[int]) -> None:
        head = pb.PicturePiece(
            connection_id=self.connection.id, room=self.transfer_id, generation=self.generation
        )
        pictures = [(index, self._wanted.pictures[index].files) for index in indices]
        try:
            await send_pictures(self.connection.stub, head, pictures, self._piece_taken)
        except PicturesNotSent as error:
            # Later the prefill node has them, and only its reply was lost.
            if self._side.state is ReceiverState.RESERVED:
                self.put(on.GivenUp(str(error), Loss.STREAM))

    def _piece_taken(self) -> None:
        self._pieces += 1
        reach(Place.RECEIVER_AFTER_PIECE)

    def _note_wait(self, noted: do.NoteWait) -> None:
        """Record the reported wait; give the transfer up if another node can begin the prompt much
        sooner."""
        chosen, wait = self._chosen, noted.seconds
        self.connection.load.answered(wait, chosen.asked_at, time.monotonic())
        if noted.may_move and chosen.second is not None and chosen.should_move(wait):
            reason = f"{wait:.3g} s of other prompts are before it"
            self.put(on.GivenUp(reason, Loss.MOVED))

    def _ready(self, remote: m.RemoteReady) -> None:
        usable = remote.hit.usable_tokens
        report = self._chosen.report(self._side.wait, usable)
        self._note_found(usable)
        self.post(replace(remote, prefill_choice=report))

    def _note_found(self, usable: int) -> None:
        hints = self.connection.hints
        before = hints.doubted
        hints.note(self._chosen.listed, usable)
        if hints.doubted != before:
            log.warning(
                "prefill node %s: %s of what it lists is found there; it is %s",
                self.connection.node.name,
                "less than half" if hints.doubted else "most",
                "believed for that part alone" if hints.doubted else "believed again",
            )

    def closed(self) -> None:
        super().closed()
        if self._pull is not None:
            # Without this, room and pull would hold each other until a full collection.
            pull, self._pull = self._pull, None
            pull.put(on.Stopped("its transfer is over"))


class IncomingFetch(IncomingTransfer):
    def __init__(
        self,
        wanted: m.FetchWanted,
        link: PrefillLink,
        connection: PrefillConnection,
        shared: SharedMeans,
        post: m.Post,
    ) -> None:
        """wanted: the engine's request for the fetch. REQUIRES: the connection belongs to the link
        and is alive."""
        super().__init__(
            FETCH, wanted.transfer_request, link, connection, shared, post, within=wanted.seconds
        )
        self._wanted = wanted

    def opening(self) -> pb.ReceiverMessage:
        return wire.fetch(self._wanted)

    def answer(self, action: Action) -> None:
        match action:
            case do.TellRefused():
                self.post(m.FetchLost(self.id, m.FetchOutcome.REFUSED))
            case do.TellLost(loss=loss):
                self.post(m.FetchLost(self.id, _OUTCOMES.get(loss, m.FetchOutcome.LOST)))
