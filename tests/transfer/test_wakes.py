"""Threads of a hand-over wake for what they wait for: a sender's for a window that is ready, a
verification for a window of its own room. Told by counts; a node has a hundred rooms."""

import threading
from collections import Counter
from collections.abc import Sequence

import pytest

from tasuki.transfer.receiving.incoming_room import IncomingRoom
from tasuki.transfer.sending import sender as sender_file
from tasuki.transfer.sending.outgoing_room import OutgoingRoom
from tasuki.transfer.sending.sender import Sender, SenderSettings
from tasuki.transfer.sending.tick_alarm import TickAlarm
from tasuki.transfer.windows.step_counter import StepCounter
from tests.harness.loopback_pair import GENERATION, loopback_pair, plans
from tests.harness.waiting import HANG_SECONDS, until

LAYERS = 8


def test_an_alarm_rings_from_its_tick_on_and_tells_of_one_that_has_come() -> None:
    steps, rings = StepCounter(), Counter[int]()
    alarm = TickAlarm(steps, lambda: rings.update([steps.value]))
    steps.tick()
    assert not rings, "nothing is awaited"
    assert not alarm.set(LAYERS)
    for _ in range(LAYERS):
        steps.tick()
    assert sorted(rings) == [LAYERS, LAYERS + 1]
    assert alarm.set(LAYERS), "it would ring for nobody"


def test_a_forward_of_one_window_wakes_the_sender_once(monkeypatch: pytest.MonkeyPatch) -> None:
    wakes = Counter[str]()
    ticked = TickAlarm._ticked

    def counted(self: TickAlarm) -> None:
        ring, self._ring = self._ring, lambda: (wakes.update(["woken"]), ring())[1]
        try:
            ticked(self)
        finally:
            self._ring = ring

    monkeypatch.setattr(TickAlarm, "_ticked", counted)
    with loopback_pair(settings=SenderSettings(layers_per_window=LAYERS)) as pair:
        opened = pair.open(pages=4)
        for plan in plans(opened.pages, opened.slot, 2):
            pair.sender.plan_forward(opened.number, plan(pair.steps.value))
            # The thread has seen the plan: what it waits for is known.
            (alarm,) = pair.sender._alarms
            awaited = pair.steps.value + LAYERS
            until(lambda: alarm._awaited == awaited, "the plan was not seen")  # noqa: B023
            pair.tick()
        pair.verified()
        pair.assert_landed(opened)
    assert wakes["woken"] == 2, "one for each of the two forwards"


def test_a_tick_while_rooms_are_looked_at_is_not_slept_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that comes behind the look at its room, and before the thread rests."""
    post = Sender._post_in_turns
    rests: list[bool] = []

    def slow(self: Sender, rooms: Sequence[OutgoingRoom]) -> bool:
        posted = post(self, rooms)
        if rooms and rooms[0].waiting and not rests and not posted:
            rests.append(True)
            pair.tick()
            # What rings is lost, as where another window is awaited that is further off.
            self._wake.clear()
        return posted

    monkeypatch.setattr(Sender, "_post_in_turns", slow)
    monkeypatch.setattr(sender_file, "_IDLE_SECONDS", HANG_SECONDS)
    with loopback_pair(settings=SenderSettings(layers_per_window=LAYERS)) as pair:
        opened = pair.open(pages=2)
        (plan,) = plans(opened.pages, opened.slot, 2)
        pair.sender.plan_forward(opened.number, plan(pair.steps.value))
        pair.verified(timeout=HANG_SECONDS / 2)
        assert rests


def test_rooms_that_wait_cost_a_pass_nothing_but_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what has windows in flight, or ends, is advanced."""
    advanced = Counter[int]()
    advance = Sender._advance

    def counted(self: Sender, room: object) -> bool:
        advanced[room.room] += 1  # type: ignore[attr-defined]
        return advance(self, room)  # type: ignore[arg-type]

    monkeypatch.setattr(Sender, "_advance", counted)
    with loopback_pair(slabs=16) as pair:
        idle = [pair.open(pages=1, room=number, seed=number) for number in (1, 2, 3)]
        opened = pair.hand_over()
        pair.verified()
        assert advanced[opened.number]
        assert not any(advanced[room.number] for room in idle)
        # But a lease that ends is seen by all of them.
        pair.sender.disconnect("peer")
        for room in idle:
            pair.ends.wait(room.number)


def test_a_window_wakes_who_waits_for_its_room_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = Counter[int]()
    missing = IncomingRoom.missing

    def counted(self: IncomingRoom, sent: object) -> list[int]:
        looked[self.room] += 1
        return missing(self, sent)  # type: ignore[arg-type]

    monkeypatch.setattr(IncomingRoom, "missing", counted)
    with loopback_pair(slabs=16) as pair:
        first = pair.hand_over()
        sent = pair.sent(first.number).report.digests
        waiting = pair.open(pages=1, room=2, seed=2)
        threads = [
            threading.Thread(target=_verify_until_forgotten, args=(pair.receiver, waiting, sent))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        until(lambda: looked[waiting.number] == 2, "nobody waits")
        other = pair.open(pages=4, room=3, seed=3)
        pair.compute(other)
        pair.verified(other.number)
        assert looked[waiting.number] == 2, "windows of another room woke them"
        pair.receiver.forget(waiting.number)
        for thread in threads:
            thread.join(HANG_SECONDS)
            assert not thread.is_alive()


def _verify_until_forgotten(receiver: object, opened: object, sent: object) -> None:
    with pytest.raises(Exception, match="is not expected"):
        receiver.verify(opened.number, GENERATION, sent, HANG_SECONDS)  # type: ignore[attr-defined]
