"""A side of a transfer on an event loop handles its events in order and its checks in time. Its
cost is low enough for hundreds of transfers."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from tasuki.transfer.control.driven_room import DrivenRoom, LiveRooms, ReceivingRoom, SendingRoom
from tasuki.transfer.control.writer_life import WriterLife
from tasuki.transfer.errors import DigestMismatch, TransferError, WindowsMissing
from tasuki.transfer.node_identity import ProcessIdentity
from tasuki.transfer.reports import Drain, RoomBroke, RoomEnd, RoomSent, SendReport
from tasuki.transfer.rooms import actions as do
from tasuki.transfer.rooms import events as on
from tasuki.transfer.rooms import messages as say
from tasuki.transfer.rooms.actions import Loss
from tasuki.transfer.rooms.deadlines import ReceiverDeadlines, SenderDeadlines
from tasuki.transfer.rooms.fence import FenceReason
from tasuki.transfer.rooms.receiving import Receiving, ReceivingTerms
from tasuki.transfer.rooms.sending import Sending, SendingTerms
from tasuki.transfer.rooms.states import HANDOVER, SenderState
from tasuki.transfer.windows.window import Destination
from tests.harness.waiting import HANG_SECONDS


class Room(DrivenRoom):
    """A transfer that records its actions. refuses: the action that it rejects."""

    def __init__(self, look: float, refuses: type | None = None) -> None:
        terms = SendingTerms(SenderDeadlines(), look)
        side = Sending(HANDOVER, 7, 1, terms, time.monotonic())
        super().__init__(side, "room 7", {})
        self.asked: list[do.Action] = []
        self.looks: list[float] = []
        self.is_closed = 0
        self._refuses = refuses

    @property
    def state(self) -> object:
        return self._side.state

    def facts(self) -> on.Look:
        self.looks.append(time.monotonic())
        return on.Look()

    def perform(self, action: do.Action) -> on.Event | None:
        if self._refuses is not None and isinstance(action, self._refuses):
            raise TransferError("not here")
        self.asked.append(action)
        return None

    def closed(self) -> None:
        self.is_closed += 1


class Landed:
    """A receiver with bytes that are verified at once or later, or are wrong."""

    def __init__(self, at_once: bool | TransferError, later: TransferError | None = None) -> None:
        self.at_once = at_once
        self.later = later
        self.forgotten: list[int] = []

    def verify_landed(self, room: int, generation: int, sent: object) -> bool:
        if isinstance(self.at_once, TransferError):
            raise self.at_once
        return self.at_once

    def verify(self, room: int, generation: int, sent: object, timeout: float) -> None:
        assert (room, generation, timeout) == (7, 1, 3.0)
        if self.later is not None:
            raise self.later

    def windows_landed(self, room: int) -> int:
        return 5

    def expect(self, *_: object) -> None: ...

    def forget(self, room: int) -> None:
        self.forgotten.append(room)


class Severing:
    def __init__(self) -> None:
        self.ended: list[FenceReason] = []

    async def end(self, writer: WriterLife, reason: FenceReason) -> None:
        self.ended.append(reason)


class Receiver(ReceivingRoom):
    def __init__(self, landed: Landed) -> None:
        writer = WriterLife(ProcessIdentity.own(), 1.0, 0.5, 0.0)
        self.severing = Severing()
        fence = writer.terms(acknowledge=1.0, patience=1.0)
        terms = ReceivingTerms(ReceiverDeadlines(), fence)
        side = Receiving(HANDOVER, 7, 1, terms, time.monotonic())
        doubles: Any = landed, self.severing
        super().__init__(side, *doubles, writer, 3.0, "room 7", {})
        self.asked: list[do.Action] = []

    def act(self, action: do.Action) -> on.Event | None:
        self.asked.append(action)
        return on.Prepared("read") if isinstance(action, do.Prepare) else None


@pytest.mark.parametrize(
    ("landed", "loss"),
    [
        (Landed(True), None),
        (Landed(False), None),
        (Landed(DigestMismatch("bits")), Loss.DIGEST),
        (Landed(WindowsMissing("two")), Loss.MISSING),
        (Landed(False, DigestMismatch("bits")), Loss.DIGEST),
        (Landed(False, WindowsMissing("two")), Loss.MISSING),
    ],
)
async def test_what_landed_is_compared_at_once_or_beside_the_rooms_events(
    landed: Landed, loss: Loss | None
) -> None:
    room = Receiver(landed)
    over = asyncio.Event()
    room.start(lambda failure: over.set())
    room.put(say.Accepted())
    room.put(say.Grant(1, Destination(0, (3,), 9)))
    room.put(say.Ready(1))
    room.put(say.Done(1, ()))
    await over.wait()
    told = [action.loss for action in room.asked if isinstance(action, do.TellLost)]
    commits = [action.payload for action in room.asked if isinstance(action, do.Commit)]
    assert landed.forgotten == [7, 7], "when it is told, and when it is over"
    assert room.facts().progress == 5
    if loss is None:
        assert (told, commits, room.severing.ended) == ([], ["read"], [])
        return
    drained = FenceReason.DRAIN_ACKNOWLEDGED
    assert (told, commits, room.severing.ended) == ([loss], [], [drained])
    assert room.asked[-1] == do.TellFenced(drained)


class Outgoing:
    """A sender that ends on its own thread, when the test says so."""

    def __init__(self) -> None:
        self.drain: Future[Drain] = Future()
        self.on_end: Callable[[RoomEnd], None] = lambda end: None

    def open(self, room: int, generation: int, peer: str, *rest: Any) -> None:
        assert (room, generation, peer, rest[0].pages) == (7, 1, "peer", (3,))
        self.on_end = rest[1]

    def progress(self, room: int) -> int:
        return 10 * room

    def abort(self, room: int, peer: str) -> "Future[Drain]":
        assert (room, peer) == (7, "peer")
        return self.drain


class Sender(SendingRoom):
    def __init__(self, outgoing: Outgoing) -> None:
        side = Sending(HANDOVER, 7, 1, SendingTerms(SenderDeadlines(), 1.0), time.monotonic())
        double: Any = outgoing
        super().__init__(side, "peer", double, "room 7", {})
        self.asked: list[do.Action] = []

    def act(self, action: do.Action) -> on.Event | None:
        self.asked.append(action)
        return None

    def closed(self) -> None: ...


REPORT = SendReport(0, 0, 0, 0.0, 0.0, (), ())


@pytest.mark.parametrize(
    ("end", "last"),
    [
        (RoomSent(7, REPORT), say.Done),
        (RoomBroke(7, "the wire", Drain.FORCED, endpoint_failed=True), say.Ended),
        (None, say.Ended),
    ],
    ids=["sent", "broke", "stopped"],
)
async def test_what_becomes_of_a_rooms_bytes_is_heard_from_their_thread(
    end: RoomEnd | None, last: type
) -> None:
    outgoing, over = Outgoing(), asyncio.Event()
    room = Sender(outgoing)
    room.start(lambda failure: over.set())
    room.put(on.Leased())
    room.put(say.Grant(1, Destination(0, (3,), 9)))
    room.put(on.Announced())
    await asyncio.sleep(0)
    assert room.facts() == on.Look(70) and not room.endpoint_failed
    if end is None:
        room.put(on.Stopped("left"))
        await asyncio.to_thread(outgoing.drain.set_result, Drain.DRAINED)
    else:
        await asyncio.to_thread(outgoing.on_end, end)
    await over.wait()
    assert isinstance(room.asked[-1], do.Say) and isinstance(room.asked[-1].message, last)
    assert room.endpoint_failed is isinstance(end, RoomBroke)


def said(room: Room) -> list[say.Message]:
    return [action.message for action in room.asked if isinstance(action, do.Say)]


async def started(room: Room) -> LiveRooms[int, Room]:
    rooms: LiveRooms[int, Room] = LiveRooms()
    rooms.start(7, room)
    return rooms


async def test_events_that_come_before_the_first_are_taken_behind_it() -> None:
    room = Room(HANG_SECONDS)
    rooms = await started(room)
    room.put(on.Leased())
    assert not room.asked
    await asyncio.sleep(0)
    assert room.asked == [do.Reserve(), do.Say(say.Accepted())]
    room.put(on.ReceiverLost())
    room.put(on.Drained(Drain.DRAINED))
    room.put(on.Leased())
    assert said(room)[-1] == say.Ended(Drain.DRAINED, None, 1)
    assert room.is_closed == 1 and room.is_over and not len(rooms)


async def test_what_is_refused_comes_back_and_nothing_behind_it_is_done() -> None:
    room = Room(HANG_SECONDS, refuses=do.Reserve)
    await started(room)
    await asyncio.sleep(0)
    assert room.state is SenderState.DRAINING and room.asked == [do.DrainNow()]
    room.put(on.Drained(Drain.DRAINED))
    assert said(room) == [say.Ended(Drain.DRAINED, "not here", 1)]


async def test_what_an_action_brings_is_taken_behind_the_step_under_way() -> None:
    class Lost(Room):
        def perform(self, action: do.Action) -> on.Event | None:
            if isinstance(action, do.Reserve):
                self.put(on.ReceiverLost())
            return super().perform(action)

    room = Lost(HANG_SECONDS)
    await started(room)
    await asyncio.sleep(0)
    assert room.asked == [do.Reserve(), do.DrainNow()]


async def test_a_side_that_breaks_twice_is_over_with_its_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room, failures = Room(HANG_SECONDS), list[Exception | None]()
    room.start(failures.append)
    await asyncio.sleep(0)
    monkeypatch.setattr(room._side, "step", lambda event, now: 1 // 0)
    room.put(on.Leased())
    assert room.is_over and isinstance(failures[0], ZeroDivisionError)


async def test_a_look_that_is_due_sooner_takes_the_place_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = Room(HANG_SECONDS)
    await started(room)
    await asyncio.sleep(0)
    before = room._timer
    monkeypatch.setattr(room._side, "wake", lambda now: 1.0)
    room.put(on.Moved(1))
    assert before is not None and before.cancelled() and room._timer is not before
    room.end()
    assert room._timer is None


async def test_it_is_looked_at_within_look_seconds_however_many_events_come() -> None:
    look = 0.05
    room = Room(look)
    await started(room)
    begun = time.monotonic()
    while len(room.looks) < 3:
        room.put(on.Moved(len(room.asked)))
        await asyncio.sleep(0.01)
    assert room.looks[0] - begun >= look * 0.9
    room.end()


async def test_an_event_costs_no_task_and_no_timer() -> None:
    """The loop's work for a transfer is counted."""
    loop = asyncio.get_running_loop()
    timers: list[float] = []
    call_at = loop.call_at
    loop.call_at = lambda when, *rest, **named: (  # type: ignore[method-assign]
        timers.append(when),
        call_at(when, *rest, **named),
    )[1]
    room = Room(HANG_SECONDS)
    known = asyncio.all_tasks()
    await started(room)
    await asyncio.sleep(0)
    before = len(timers)
    for position in range(100):
        room.put(on.Moved(position))
    assert asyncio.all_tasks() <= known and len(timers) == before
    room.end()


async def test_the_end_of_all_rooms_is_the_end_of_the_last_one() -> None:
    room, other = Room(HANG_SECONDS), Room(HANG_SECONDS)
    rooms = await started(room)
    rooms.start(8, other)
    ending = asyncio.create_task(rooms.end(10 * HANG_SECONDS))
    room.end()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not ending.done() and [*rooms] == [other]
    other.end()
    await asyncio.wait_for(ending, HANG_SECONDS)


async def test_rooms_that_do_not_end_are_dropped_after_the_patience() -> None:
    room = Room(HANG_SECONDS)
    rooms = await started(room)
    await rooms.end(0.05)
    assert room.is_over and room.is_closed == 1 and not len(rooms)
