"""One hand-over on the prefill node: between the receiver's stream, the engine and the sender.

Owns what a hand-over adds to a sending room (transfer/rooms/sending_room.py): the place in the
queue, the gateway's call, the grant, the first token, and what goes out on its stream. Knows no
gRPC. Thread rule: the event loop.
Invariants: the engine is given PrefillEnd exactly once, after the sender drained (or gave up
draining); the receiver gets the end of the room exactly once, and nothing after it.
"""

import asyncio
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import inf

from tasuki.engine import messages as m
from tasuki.proto import handover_pb2 as pb
from tasuki.transfer.errors import TransferError
from tasuki.transfer.failpoints import Place, reach
from tasuki.transfer.protocol.handover_states import SenderEvent, SenderState, sender_machine
from tasuki.transfer.protocol.messages import drain_to_wire
from tasuki.transfer.reports import Drain, Phase, SenderTrack, SendReport
from tasuki.transfer.rooms.room import Stalled, Stopped
from tasuki.transfer.rooms.room_deadlines import SenderDeadlines
from tasuki.transfer.rooms.sending_room import SendingRoom
from tasuki.transfer.sending.sender import Sender
from tasuki.transfer.windows.window import Destination

from . import handover_messages as wire
from .pull_receiver import PullReceiver, Say


@dataclass(frozen=True)
class AbortAsked:
    """By the receiver, on the stream or by the unary call."""


@dataclass(frozen=True)
class ReceiverLost:
    """The stream or the whole connection broke: nobody listens any more."""


@dataclass(frozen=True)
class GatewayArrived:
    """The gateway's call for this room is here too, with the same prompt."""


@dataclass(frozen=True)
class GatewayMissing:
    """It did not come in time."""


RoomEvent = (
    m.PrefillQueued
    | m.PrefillAccepted
    | m.PrefillRefused
    | m.PrefillToken
    | m.FetchRefused
    | m.StateHeld
    | m.Grant
    | m.PullWanted
    | pb.PullDone
    | pb.PullFailed
    | AbortAsked
    | ReceiverLost
    | GatewayArrived
    | GatewayMissing
)


_SAID_AGAIN_SECONDS = 0.25
"""Between two places in the queue that are said because they changed."""

BeginPull = Callable[[m.PullGrant, str, Say], PullReceiver | None]


class OutgoingHandover(SendingRoom[RoomEvent]):
    room: m.RoomId

    def __init__(
        self,
        reserve: m.PrefillReserve | m.FetchReserve,
        connection: str,
        post: Callable[[m.Inbox], None],
        sender: Sender,
        progress_seconds: float,
        begin_pull: BeginPull,
        say: Say,
        request_id: str = "",
        *,
        deadlines: SenderDeadlines | None = None,
        awaits_gateway: bool = False,
    ) -> None:
        """progress_seconds: between two repetitions of Queued, and between two looks at the
        deadlines. begin_pull: fetches what the ticket offers; outlives the room. say: to the
        receiver, in order, up to Closed. request_id: as the receiver's clients know it; empty where
        it sent none. awaits_gateway: nothing is computed before GatewayArrived."""
        room = reserve.ticket.room
        super().__init__(
            room,
            reserve.ticket.generation,
            connection,
            sender_machine(),
            deadlines or SenderDeadlines(),
            progress_seconds,
            sender,
            f"room {room}",
            {"request_id": request_id, "room": room},
        )
        self.ended: asyncio.Future[Drain] = asyncio.get_running_loop().create_future()
        self._reserve = reserve
        self._awaits_gateway = awaits_gateway
        self._post = post
        self._begin_pull = begin_pull
        self._say = say
        self._pull: PullReceiver | None = None
        self._position: int | None = None
        self._position_said_at = -inf
        self._pulled: m.PullReport | None = None
        self._given_up: m.LossCause | None = None

    @property
    def prompt(self) -> m.Tokens:
        return self._reserve.prompt

    def over(self, drain: Drain) -> None:
        if self._pull is not None:
            self._pull.put(Stopped("its room is over"))
        self._post(m.PrefillEnd(self.room, self._given_up))
        self.ended.set_result(drain)

    def close(self) -> None:
        """The last thing that is said, once the room is over."""
        self._say(pb.SenderMessage(closed=pb.Closed()))

    def begin(self) -> None:
        self.machine.apply(SenderEvent.ARRIVE)
        if not self._awaits_gateway:
            # A Reserve that brings the prompt is the gateway's call and the receiver's in one.
            self._meet()

    def _marks(self) -> Hashable:
        return self.progress, None if self._pull is None else self._pull.progress

    def take(self, event: RoomEvent | Stalled) -> None:
        machine = self.machine
        match event:
            case m.PrefillAccepted():
                if machine.apply(SenderEvent.ACCEPT) is SenderState.ACCEPTED:
                    self.phases.mark(Phase.ACCEPTED)
                    self._say(pb.SenderMessage(accepted=pb.Accepted()))
            case m.PrefillQueued(wait_seconds=seconds):
                if machine.state is SenderState.QUEUED:
                    queued = pb.Queued(position=self._position, wait_seconds=seconds)
                    self._say(pb.SenderMessage(queued=queued))
            case m.PullWanted(grant=grant):
                # Where the room drains by now the pull is lost by run() at once.
                self._pull = self._begin_pull(grant, self.connection, self._say)
            case pb.PullDone() | pb.PullFailed():
                if self._pull is not None:
                    self._pull.put(event)
            case m.PrefillRefused(error=error):
                self._refuse(error)
            case m.Grant():
                self._grant(event)
            case m.PrefillToken():
                self._produced(event)
            case m.FetchRefused(refusal=refusal):
                if machine.apply(SenderEvent.REFUSE) is SenderState.REFUSED:
                    self._say(wire.fetch_refused(refusal))
            case m.StateHeld():
                self._ready(pb.SenderMessage(held=pb.Held(generation=self.generation)))
            case GatewayArrived():
                self._meet()
            case GatewayMissing():
                if machine.allows(SenderEvent.EXPIRE):
                    machine.apply(SenderEvent.EXPIRE)
                    self.send_end("the gateway's call did not come", Drain.DRAINED)
            case AbortAsked() | ReceiverLost():
                self.stop(None)
            case Stalled(state=state, seconds=seconds):
                waited = state is SenderState.QUEUED
                cause = m.LossCause.QUEUE_TIMEOUT if waited else m.LossCause.STALLED
                self._given_up = self._given_up or cause
                self.stop(f"the prefill node gives up: {state.value}, for {seconds} s")

    def _meet(self) -> None:
        if self.machine.apply(SenderEvent.MEET) is SenderState.QUEUED:
            self._post(self._reserve)
            self._repeat_later()

    def _repeat_later(self) -> None:
        asyncio.get_running_loop().call_later(self._look, self._repeat_position)

    def _repeat_position(self) -> None:
        """As long as it waits: queued is not dead."""
        if self.machine.state is SenderState.QUEUED:
            self._say_position()
            self._repeat_later()

    def moved_to(self, position: int) -> None:
        """Its place in the queue. Said at once, unless it was a moment ago: then with the next
        repetition, so that a queue of many that moves fast costs each of them few messages."""
        moved, self._position = position != self._position, position
        since = time.monotonic() - self._position_said_at
        if moved and since >= _SAID_AGAIN_SECONDS and self.machine.state is SenderState.QUEUED:
            self._say_position()

    def _say_position(self) -> None:
        self._position_said_at = time.monotonic()
        self._say(pb.SenderMessage(queued=pb.Queued(position=self._position)))

    def _refuse(self, error: m.RequestError) -> None:
        if self.machine.state is SenderState.QUEUED:
            self.machine.apply(SenderEvent.REFUSE)
            if error.kind is m.ErrorKind.QUEUE_TIMEOUT:
                self._given_up = m.LossCause.QUEUE_TIMEOUT
            self._say(wire.refused(error))
        elif self.machine.state is not SenderState.DRAINING:
            # The forward broke after the grant: windows may be in flight.
            self.stop(error.message)

    def _grant(self, grant: m.Grant) -> None:
        if self.machine.apply(SenderEvent.GRANT) is not SenderState.STREAMING:
            return
        reach(Place.SENDER_ON_GRANT)
        if grant.generation != self.generation:
            self.stop(f"grant is of generation {grant.generation}, room of {self.generation}")
            return
        try:
            self.open(Destination(grant.first_page, grant.pages, grant.slot))
        except TransferError as error:
            self.stop(str(error))
            return
        self.phases.mark(Phase.GRANTED)
        self._post(m.PrefillStart(grant))

    def _produced(self, token: m.PrefillToken) -> None:
        self._pulled = token.pulled
        tail = self._sender.remaining_seconds(self.room)
        self._ready(wire.ready(self.generation, token, tail))

    def _ready(self, said: pb.SenderMessage) -> None:
        """What the receiver learns before all is flushed, or with it."""
        state = self.machine.apply(SenderEvent.TOKEN)
        if state is SenderState.DRAINING:
            return
        self.phases.mark(Phase.READY)
        self._say(said)
        if state is SenderState.DONE:
            self.finish()

    def send_done(self, report: SendReport, track: SenderTrack) -> None:
        pull = None if self._pulled is None else self._pulled.timeline
        self._say(wire.done(self.generation, report, track, pull))

    def send_end(self, failure: str | None, drain: Drain) -> None:
        drained = drain_to_wire(drain)
        if failure is None:
            self._say(pb.SenderMessage(aborted=pb.Aborted(drain=drained)))
        else:
            self._say(pb.SenderMessage(failed=pb.Failed(reason=failure, drain=drained)))
