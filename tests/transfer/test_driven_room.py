"""A side of a transfer on an event loop: its events in order, its looks in time, at a price that
hundreds of rooms can pay."""

import asyncio
import time

from tasuki.transfer.control.driven_room import DrivenRoom
from tasuki.transfer.control.live_rooms import LiveRooms
from tasuki.transfer.errors import TransferError
from tasuki.transfer.reports import Drain
from tasuki.transfer.rooms import actions as do
from tasuki.transfer.rooms import events as on
from tasuki.transfer.rooms import messages as say
from tasuki.transfer.rooms.deadlines import SenderDeadlines
from tasuki.transfer.rooms.sending import Sending, SendingTerms
from tasuki.transfer.rooms.states import HANDOVER, SenderState
from tests.harness.waiting import HANG_SECONDS


class Room(DrivenRoom):
    """Remembers what it was asked for. refuses: the action that it refuses."""

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
    """What a room costs the loop is counted."""
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


async def test_rooms_that_do_not_end_are_dropped_after_the_patience() -> None:
    room = Room(HANG_SECONDS)
    rooms = await started(room)
    await rooms.end(0.05)
    assert room.is_over and room.is_closed == 1 and not len(rooms)
