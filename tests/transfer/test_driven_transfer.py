"""A side of a transfer on an event loop handles its events in order and its checks in time. Its
cost is low enough for hundreds of transfers."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from tasuki.transfer.chunks.chunk import Destination
from tasuki.transfer.control.driven_transfer import (
    DrivenTransfer,
    LiveTransfers,
    ReceivingTransfer,
    SendingTransfer,
)
from tasuki.transfer.control.writer_life import WriterLife
from tasuki.transfer.errors import ChunksMissing, DigestMismatch, TransferError
from tasuki.transfer.lifecycle import actions as do
from tasuki.transfer.lifecycle import events as on
from tasuki.transfer.lifecycle import messages as say
from tasuki.transfer.lifecycle.actions import Loss
from tasuki.transfer.lifecycle.deadlines import ReceiverDeadlines, SenderDeadlines
from tasuki.transfer.lifecycle.fence import FenceReason
from tasuki.transfer.lifecycle.receiving import Receiving, ReceivingTerms
from tasuki.transfer.lifecycle.sending import Sending, SendingTerms
from tasuki.transfer.lifecycle.states import HANDOVER, SenderState
from tasuki.transfer.node_identity import ProcessIdentity
from tasuki.transfer.reports import Drain, SendReport, TransferBroke, TransferEnd, TransferSent
from tests.harness.waiting import HANG_SECONDS


class OneTransfer(DrivenTransfer):
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

    def verify_arrived(self, transfer_id: int, generation: int, sent: object) -> bool:
        if isinstance(self.at_once, TransferError):
            raise self.at_once
        return self.at_once

    def verify(self, transfer_id: int, generation: int, sent: object, timeout: float) -> None:
        assert (transfer_id, generation, timeout) == (7, 1, 3.0)
        if self.later is not None:
            raise self.later

    def chunks_arrived(self, transfer_id: int) -> int:
        return 5

    def expect(self, *_: object) -> None: ...

    def forget(self, transfer_id: int) -> None:
        self.forgotten.append(transfer_id)


class Severing:
    def __init__(self) -> None:
        self.ended: list[FenceReason] = []

    async def end(self, writer: WriterLife, reason: FenceReason) -> None:
        self.ended.append(reason)


class Receiver(ReceivingTransfer):
    def __init__(self, arrived: Landed) -> None:
        writer = WriterLife(ProcessIdentity.own(), 1.0, 0.5, 0.0)
        self.severing = Severing()
        fence = writer.terms(acknowledge=1.0, patience=1.0)
        terms = ReceivingTerms(ReceiverDeadlines(), fence)
        side = Receiving(HANDOVER, 7, 1, terms, time.monotonic())
        doubles: Any = arrived, self.severing
        super().__init__(side, *doubles, writer, 3.0, "room 7", {})
        self.asked: list[do.Action] = []

    def act(self, action: do.Action) -> on.Event | None:
        self.asked.append(action)
        return on.Prepared("read") if isinstance(action, do.Prepare) else None


@pytest.mark.parametrize(
    ("arrived", "loss"),
    [
        (Landed(True), None),
        (Landed(False), None),
        (Landed(DigestMismatch("bits")), Loss.DIGEST),
        (Landed(ChunksMissing("two")), Loss.MISSING),
        (Landed(False, DigestMismatch("bits")), Loss.DIGEST),
        (Landed(False, ChunksMissing("two")), Loss.MISSING),
    ],
)
async def test_what_landed_is_compared_at_once_or_beside_the_rooms_events(
    arrived: Landed, loss: Loss | None
) -> None:
    transfer = Receiver(arrived)
    over = asyncio.Event()
    transfer.start(lambda failure: over.set())
    transfer.put(say.Accepted())
    transfer.put(say.Grant(1, Destination(0, (3,), 9)))
    transfer.put(say.Ready(1))
    transfer.put(say.Done(1, ()))
    await over.wait()
    told = [action.loss for action in transfer.asked if isinstance(action, do.TellLost)]
    commits = [action.payload for action in transfer.asked if isinstance(action, do.Commit)]
    assert arrived.forgotten == [7, 7], "when it is told, and when it is over"
    assert transfer.facts().progress == 5
    if loss is None:
        assert (told, commits, transfer.severing.ended) == ([], ["read"], [])
        return
    drained = FenceReason.DRAIN_ACKNOWLEDGED
    assert (told, commits, transfer.severing.ended) == ([loss], [], [drained])
    assert transfer.asked[-1] == do.TellFenced(drained)


class Outgoing:
    """A sender that ends on its own thread, when the test says so."""

    def __init__(self) -> None:
        self.drain: Future[Drain] = Future()
        self.on_end: Callable[[TransferEnd], None] = lambda end: None

    def open(self, transfer_id: int, generation: int, peer: str, *rest: Any) -> None:
        assert (transfer_id, generation, peer, rest[0].pages) == (7, 1, "peer", (3,))
        self.on_end = rest[1]

    def progress(self, transfer_id: int) -> int:
        return 10 * transfer_id

    def abort(self, transfer_id: int, peer: str) -> "Future[Drain]":
        assert (transfer_id, peer) == (7, "peer")
        return self.drain


class Sender(SendingTransfer):
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
        (TransferSent(7, REPORT), say.Done),
        (TransferBroke(7, "the wire", Drain.FORCED, endpoint_failed=True), say.Ended),
        (None, say.Ended),
    ],
    ids=["sent", "broke", "stopped"],
)
async def test_what_becomes_of_a_rooms_bytes_is_heard_from_their_thread(
    end: TransferEnd | None, last: type
) -> None:
    outgoing, over = Outgoing(), asyncio.Event()
    transfer = Sender(outgoing)
    transfer.start(lambda failure: over.set())
    transfer.put(on.Leased())
    transfer.put(say.Grant(1, Destination(0, (3,), 9)))
    transfer.put(on.Announced())
    await asyncio.sleep(0)
    assert transfer.facts() == on.Look(70) and not transfer.endpoint_failed
    if end is None:
        transfer.put(on.Stopped("left"))
        await asyncio.to_thread(outgoing.drain.set_result, Drain.DRAINED)
    else:
        await asyncio.to_thread(outgoing.on_end, end)
    await over.wait()
    assert isinstance(transfer.asked[-1], do.Say) and isinstance(transfer.asked[-1].message, last)
    assert transfer.endpoint_failed is isinstance(end, TransferBroke)


def said(transfer: OneTransfer) -> list[say.Message]:
    return [action.message for action in transfer.asked if isinstance(action, do.Say)]


async def started(transfer: OneTransfer) -> LiveTransfers[int, OneTransfer]:
    transfers: LiveTransfers[int, OneTransfer] = LiveTransfers()
    transfers.start(7, transfer)
    return transfers


async def test_events_that_come_before_the_first_are_taken_behind_it() -> None:
    transfer = OneTransfer(HANG_SECONDS)
    transfers = await started(transfer)
    transfer.put(on.Leased())
    assert not transfer.asked
    await asyncio.sleep(0)
    assert transfer.asked == [do.Reserve(), do.Say(say.Accepted())]
    transfer.put(on.ReceiverLost())
    transfer.put(on.Drained(Drain.DRAINED))
    transfer.put(on.Leased())
    assert said(transfer)[-1] == say.Ended(Drain.DRAINED, None, 1)
    assert transfer.is_closed == 1 and transfer.is_over and not len(transfers)


async def test_what_is_refused_comes_back_and_nothing_behind_it_is_done() -> None:
    transfer = OneTransfer(HANG_SECONDS, refuses=do.Reserve)
    await started(transfer)
    await asyncio.sleep(0)
    assert transfer.state is SenderState.DRAINING and transfer.asked == [do.DrainNow()]
    transfer.put(on.Drained(Drain.DRAINED))
    assert said(transfer) == [say.Ended(Drain.DRAINED, "not here", 1)]


async def test_what_an_action_brings_is_taken_behind_the_step_under_way() -> None:
    class Lost(OneTransfer):
        def perform(self, action: do.Action) -> on.Event | None:
            if isinstance(action, do.Reserve):
                self.put(on.ReceiverLost())
            return super().perform(action)

    transfer = Lost(HANG_SECONDS)
    await started(transfer)
    await asyncio.sleep(0)
    assert transfer.asked == [do.Reserve(), do.DrainNow()]


async def test_a_side_that_breaks_twice_is_over_with_its_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transfer, failures = OneTransfer(HANG_SECONDS), list[Exception | None]()
    transfer.start(failures.append)
    await asyncio.sleep(0)
    monkeypatch.setattr(transfer._side, "step", lambda event, now: 1 // 0)
    transfer.put(on.Leased())
    assert transfer.is_over and isinstance(failures[0], ZeroDivisionError)


async def test_a_look_that_is_due_sooner_takes_the_place_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transfer = OneTransfer(HANG_SECONDS)
    await started(transfer)
    await asyncio.sleep(0)
    before = transfer._timer
    monkeypatch.setattr(transfer._side, "wake", lambda now: 1.0)
    transfer.put(on.Moved(1))
    assert before is not None and before.cancelled() and transfer._timer is not before
    transfer.end()
    assert transfer._timer is None


async def test_it_is_looked_at_within_look_seconds_however_many_events_come() -> None:
    look = 0.05
    transfer = OneTransfer(look)
    await started(transfer)
    begun = time.monotonic()
    while len(transfer.looks) < 3:
        transfer.put(on.Moved(len(transfer.asked)))
        await asyncio.sleep(0.01)
    assert transfer.looks[0] - begun >= look * 0.9
    transfer.end()


async def test_an_event_costs_no_task_and_no_timer() -> None:
    """The loop's work for a transfer is counted."""
    loop = asyncio.get_running_loop()
    timers: list[float] = []
    call_at = loop.call_at
    loop.call_at = lambda when, *rest, **named: (  # type: ignore[method-assign]
        timers.append(when),
        call_at(when, *rest, **named),
    )[1]
    transfer = OneTransfer(HANG_SECONDS)
    known = asyncio.all_tasks()
    await started(transfer)
    await asyncio.sleep(0)
    before = len(timers)
    for position in range(100):
        transfer.put(on.Moved(position))
    assert asyncio.all_tasks() <= known and len(timers) == before
    transfer.end()


async def test_the_end_of_all_rooms_is_the_end_of_the_last_one() -> None:
    transfer, other = OneTransfer(HANG_SECONDS), OneTransfer(HANG_SECONDS)
    transfers = await started(transfer)
    transfers.start(8, other)
    ending = asyncio.create_task(transfers.end(10 * HANG_SECONDS))
    transfer.end()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not ending.done() and [*transfers] == [other]
    other.end()
    await asyncio.wait_for(ending, HANG_SECONDS)


async def test_rooms_that_do_not_end_are_dropped_after_the_patience() -> None:
    transfer = OneTransfer(HANG_SECONDS)
    transfers = await started(transfer)
    await transfers.end(0.05)
    assert transfer.is_over and transfer.is_closed == 1 and not len(transfers)
