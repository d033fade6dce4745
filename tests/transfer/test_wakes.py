"""Threads of a hand-over wake only for their own events. A sender's wakes for a ready layer chunk,
a verification for a layer chunk of its own transfer. Wakes are counted, because a node has a
hundred transfers."""

import threading
from collections import Counter
from collections.abc import Sequence

import pytest

from tasuki.pycache._cpp_cache import Bell
from tasuki.transfer.chunks.chunk import StepCounter
from tasuki.transfer.receiving.incoming_transfer import IncomingTransfer
from tasuki.transfer.sending import sender as sender_file
from tasuki.transfer.sending.outgoing_transfer import OutgoingTransfer
from tasuki.transfer.sending.sender import Sender, SenderSettings
from tests.harness import loopback_pair as loopback_file
from tests.harness.loopback_pair import GENERATION, loopback_pair, plans
from tests.harness.waiting import HANG_SECONDS, until

LAYERS = 8


def test_a_forward_of_one_window_wakes_the_sender_once(monkeypatch: pytest.MonkeyPatch) -> None:
    awaited: list[tuple[int, int | None]] = []
    bells: list[Bell] = []

    class Watched(StepCounter):
        def ring_at(self, bell: Bell, tick: int | None) -> bool:
            """Ring the test's own as well."""
            bells[:] = bells or [Bell()]
            come = super().ring_at(bell, tick)
            super().ring_at(bells[0], tick)
            awaited.append((self.value, tick))
            return come

    monkeypatch.setattr(loopback_file, "StepCounter", Watched)
    with loopback_pair(settings=SenderSettings(layers_per_window=LAYERS)) as pair:
        opened = pair.open(pages=4)
        for forward, plan in enumerate(plans(opened.pages, opened.slot, 2)):
            pair.sender.plan_forward(opened.number, plan(pair.steps.value))
            # The thread has seen the plan and waits for a known tick.
            expected = (pair.steps.value, pair.steps.value + LAYERS)
            until(lambda: expected in awaited, "the plan was not seen")  # noqa: B023
            (bell,) = bells
            bell.wait(0)
            pair.tick(LAYERS - 1)
            assert not bell.wait(0), "a layer that ends no window rang"
            pair.tick(1)
            assert bell.wait(HANG_SECONDS)
            moved = forward + 1
            until(lambda: pair.receiver.chunks_arrived(opened.number) == moved, "none")  # noqa: B023
        pair.verified()
        pair.assert_arrived(opened)


def test_a_tick_while_rooms_are_looked_at_is_not_slept_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tick comes after the check of its transfer and before the thread sleeps."""
    post = Sender._post_in_turns
    rests: list[bool] = []

    def slow(self: Sender, transfers: Sequence[OutgoingTransfer]) -> bool:
        posted = post(self, transfers)
        if transfers and transfers[0].waiting and not rests and not posted:
            rests.append(True)
            pair.tick()
            # The wakeup is lost, as if a later layer chunk were awaited.
            self._bell.wait(0)
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
    """Only transfers with layer chunks in flight, or about to end, are advanced."""
    advanced = Counter[int]()
    advance = Sender._advance

    def counted(self: Sender, transfer: object) -> bool:
        advanced[transfer.transfer_id] += 1  # type: ignore[attr-defined]
        return advance(self, transfer)  # type: ignore[arg-type]

    monkeypatch.setattr(Sender, "_advance", counted)
    with loopback_pair(slabs=16) as pair:
        idle = [pair.open(pages=1, transfer_id=number, seed=number) for number in (1, 2, 3)]
        opened = pair.hand_over()
        pair.verified()
        assert advanced[opened.number]
        assert not any(advanced[transfer.number] for transfer in idle)
        # But all of them see the end of a lease.
        pair.sender.disconnect("peer")
        for transfer in idle:
            pair.ends.wait(transfer.number)


def test_a_window_wakes_who_waits_for_its_room_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = Counter[int]()
    missing = IncomingTransfer.missing

    def counted(self: IncomingTransfer, sent: object) -> list[int]:
        looked[self.transfer_id] += 1
        return missing(self, sent)  # type: ignore[arg-type]

    monkeypatch.setattr(IncomingTransfer, "missing", counted)
    with loopback_pair(slabs=16) as pair:
        first = pair.hand_over()
        sent = pair.sent(first.number).report.digests
        waiting = pair.open(pages=1, transfer_id=2, seed=2)
        threads = [
            threading.Thread(target=_verify_until_forgotten, args=(pair.receiver, waiting, sent))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        until(lambda: looked[waiting.number] == 2, "nobody waits")
        other = pair.open(pages=4, transfer_id=3, seed=3)
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
