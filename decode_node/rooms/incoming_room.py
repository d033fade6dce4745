"""A room of a prefill node that writes into this decode node: what hand-overs and fetches share.

Owns what such a room adds to a receiving room (transfer/rooms/receiving_room.py): the stream, the
grant, the commit, and how a drain is asked for. Thread rule: the event loop.
Invariants: every room that was granted ends in exactly one of RemoteDone, or its loss (not where
the engine cancelled) followed by WriterFenced.
"""

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tasuki.decode_node import handover_messages as wire
from tasuki.decode_node.handover_settings import HandoverSettings
from tasuki.decode_node.prefill_link import PrefillConnection, PrefillLink
from tasuki.decode_node.room_stream import StreamBroke
from tasuki.engine import messages as m
from tasuki.proto import handover_pb2 as pb
from tasuki.transfer.errors import TransferError
from tasuki.transfer.failpoints import Place, reach
from tasuki.transfer.fencing.writer_fence import WriterFence
from tasuki.transfer.protocol.handover_states import ReceiverEvent, ReceiverState, receiver_machine
from tasuki.transfer.protocol.messages import drain_from_wire, windows_from_wire
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.reports import Drain, Phase, ReceiverTrack, WindowDigest
from tasuki.transfer.rooms.receiving_room import LossKind, ReceivingRoom
from tasuki.transfer.rooms.room import Stalled
from tasuki.transfer.windows.window import Destination

_ABORT_AGAIN_SECONDS = 0.1


@dataclass(frozen=True)
class GivenUp:
    """This node waits no longer."""

    reason: str
    cause: m.LossCause


RoomEvent = (
    pb.SenderMessage
    | m.HandoverGranted
    | m.HandoverDeclined
    | m.HandoverCancelled
    | StreamBroke
    | GivenUp
)


class IncomingRoom(ReceivingRoom[RoomEvent]):
    room: m.RoomId

    def __init__(
        self,
        room: m.RoomId,
        generation: int,
        request_id: m.RequestId,
        link: PrefillLink,
        connection: PrefillConnection,
        fence: WriterFence,
        post: Callable[[m.Inbox], None],
        receiver: Receiver,
        settings: HandoverSettings,
        name: str,
    ) -> None:
        """request_id: what it is for. REQUIRES: the connection, of that link, is alive."""
        super().__init__(
            room,
            generation,
            receiver_machine(),
            settings.deadlines,
            settings.landing,
            receiver,
            fence,
            name,
            {"request_id": request_id},
        )
        self.request_id = request_id
        self.connection = connection
        self._link = link
        self._post = post
        self._settings = settings
        self._done: pb.Done | None = None
        self._stream = connection.stream()
        self._line = self._stream.join(self.room, self._events.put)

    @abstractmethod
    def _opening(self) -> pb.ReceiverMessage:
        """The first thing that is said."""

    @abstractmethod
    def _refused(self, refused: pb.Refused) -> None:
        """Nothing was granted: answer the engine."""

    @abstractmethod
    def _lose(self, reason: str, cause: m.LossCause = m.LossCause.STREAM) -> None:
        """Mark it lost, and answer the engine."""

    async def run(self) -> None:
        """From the first message to the end, the fence included."""
        self.machine.apply(ReceiverEvent.RESERVE)
        reach(Place.RECEIVER_BEFORE_RESERVE)
        self._line.say(self._opening())
        try:
            await super().run()
        finally:
            self._stream.leave(self._line)

    def take(self, event: RoomEvent | Stalled) -> None:
        match event:
            case pb.SenderMessage():
                self._heard(event)
            case m.HandoverGranted(grant=grant):
                self._grant(grant)
            case m.HandoverDeclined():
                self._lose("no room to receive it now", m.LossCause.NO_ROOM)
            case m.HandoverCancelled():
                self.machine.apply(ReceiverEvent.LOSE)
            case StreamBroke(reason=reason):
                # After Done nothing more comes, and nothing more is needed.
                if self.machine.state is not ReceiverState.VERIFYING:
                    self._lose(reason)
            case GivenUp(reason=reason, cause=cause):
                self._lose(reason, cause)
            case Stalled(state=ReceiverState.ACCEPTED, seconds=seconds):
                reason = f"no room to receive it came free here for {seconds} s"
                self._lose(reason, m.LossCause.NO_ROOM)
            case Stalled():
                self._lose(event.reason, m.LossCause.STALLED)

    def _heard(self, message: pb.SenderMessage) -> None:
        machine = self.machine
        match message.WhichOneof("message"):
            case "queued":
                machine.apply(ReceiverEvent.QUEUED)
            case "accepted":
                machine.apply(ReceiverEvent.ACCEPTED)
                reach(Place.RECEIVER_ON_ACCEPTED)
                self.phases.mark(Phase.ACCEPTED)
                self._post(m.GrantWanted(self.room))
            case "refused":
                machine.apply(ReceiverEvent.REFUSED)
                self._refused(message.refused)
            case "done":
                if self.done(message.done.generation):
                    self._done = message.done
                    self.verify(partial(_sent, message.done))
            case "failed":
                self.fence.acknowledge(drain_from_wire(message.failed.drain))
                self._lose(message.failed.reason)
            case "aborted":
                self.fence.acknowledge(drain_from_wire(message.aborted.drain))
                self._lose("the prefill node ended the room")
            case _:
                self._lose("the prefill node sent a message of another version")

    def _grant(self, grant: m.Grant) -> None:
        self.machine.apply(ReceiverEvent.GRANT)
        reach(Place.RECEIVER_ON_GRANT)
        target = Destination(grant.first_page, grant.pages, grant.slot)
        try:
            self._receiver.expect(self.room, self.generation, target)
        except TransferError as error:
            # The sender never saw the grant.
            self.fence.acknowledge(Drain.DRAINED)
            self._lose(str(error))
            return
        self.phases.mark(Phase.GRANTED)
        self._line.say(wire.grant(grant))

    def _is_ready(self, generation: int) -> bool:
        """Before the final status. False where it is of another grant, and lost."""
        self.machine.apply(ReceiverEvent.READY)
        if generation != self.generation:
            self._lose(f"ready of generation {generation}, not {self.generation}")
            return False
        reach(Place.RECEIVER_ON_READY)
        self.phases.mark(Phase.READY)
        return True

    def commit(self, received: ReceiverTrack) -> None:
        assert self._done is not None
        done = wire.done_from_wire(self.room, self._done, received)
        reach(Place.RECEIVER_BEFORE_COMMIT)
        self.machine.apply(ReceiverEvent.VERIFIED)
        self._post(done)
        reach(Place.RECEIVER_AFTER_COMMIT)

    def lose(self, reason: str, kind: LossKind) -> None:
        self._lose(reason, m.LossCause[kind.name])

    def fenced(self) -> None:
        self._post(m.WriterFenced(self.room))

    async def ask_to_drain(self) -> None:
        """On the stream while that stands, then by the unary call."""
        if not self.fence.answered:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.acknowledge):
                    await self._ask_on_stream()
        while not self.fence.answered:
            drain = await self._link.abort(
                self.connection, self.room, self.generation, self._settings.acknowledge
            )
            if drain is None:
                await asyncio.sleep(_ABORT_AGAIN_SECONDS)
            else:
                self.fence.acknowledge(drain)

    async def _ask_on_stream(self) -> None:
        """Abort, and read what was under way until the reply, or until the stream ends."""
        if self._line.over:
            return
        self._line.say(pb.ReceiverMessage(abort=pb.Abort(generation=self.generation)))
        while not isinstance(event := await self._events.get(), StreamBroke):
            if not isinstance(event, pb.SenderMessage):
                continue
            match event.WhichOneof("message"):
                case "aborted":
                    self.fence.acknowledge(drain_from_wire(event.aborted.drain))
                case "failed":
                    self.fence.acknowledge(drain_from_wire(event.failed.drain))
                case "done":
                    # Every window was flushed before this was sent.
                    self.machine.apply(ReceiverEvent.DONE)
                    self.fence.acknowledge(Drain.DRAINED)
                case "ready" | "held":
                    self.machine.apply(ReceiverEvent.READY)
            if self.fence.answered:
                return


def _sent(done: pb.Done) -> tuple[WindowDigest, ...]:
    reach(Place.RECEIVER_BEFORE_VERIFY)
    return windows_from_wire(done.windows)
