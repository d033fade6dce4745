"""The receiving side as a value: its requests for a drain, the end of its connection, and the
fences held again after a break. Times are given; nothing waits."""

from collections.abc import Sequence

import pytest

from tasuki.transfer.chunks.chunk import Destination
from tasuki.transfer.lifecycle import actions as do
from tasuki.transfer.lifecycle import events as on
from tasuki.transfer.lifecycle import messages as say
from tasuki.transfer.lifecycle.actions import Action, Loss
from tasuki.transfer.lifecycle.deadlines import PullReceiverDeadlines, ReceiverDeadlines
from tasuki.transfer.lifecycle.events import Event
from tasuki.transfer.lifecycle.fence import FenceReason, FenceTerms, WriterFacts
from tasuki.transfer.lifecycle.receiving import Receiving, ReceivingTerms
from tasuki.transfer.lifecycle.states import COPY, FETCH, HANDOVER, PULL, Kind, ReceiverState
from tasuki.transfer.reports import Drain, Phase

FENCE = FenceTerms(lease=5.0, retry=1.0, settle=0.0, acknowledge=3.0, patience=10.0)
TARGET = Destination(0, (3, 4), 9)
GRANT = say.Grant(1, TARGET)
BEGUN: tuple[Event, ...] = (on.Begin(),)
UP_TO_GRANT: tuple[Event, ...] = (*BEGUN, say.Accepted(), GRANT)
UP_TO_DONE: tuple[Event, ...] = (*UP_TO_GRANT, say.Ready(1), say.Done(1, (), "report"))
PULLED: tuple[Event, ...] = (*BEGUN, say.PullAsked("offer"))


def transfer_id(kind: Kind = HANDOVER, within: float | None = None) -> Receiving:
    deadlines = PullReceiverDeadlines(look=1.0) if kind is PULL else ReceiverDeadlines()
    made = Receiving(kind, 7, 1, ReceivingTerms(deadlines, FENCE, within), 0.0)
    if kind is PULL:
        made.grant_first(GRANT)
    return made


def taken(made: Receiving, events: Sequence[Event], now: float = 0.0) -> list[Action]:
    """Return the actions of the last of these events."""
    return [made.step(event, now) for event in events][-1]


def granted() -> Receiving:
    made = transfer_id()
    taken(made, UP_TO_GRANT)
    return made


def test_a_hand_over_asks_wants_grants_and_commits() -> None:
    one = transfer_id()
    assert one.step(on.Begin(), 0.0) == [do.Say(say.Ask())]
    assert one.step(say.Queued(4, 2.5), 0.0) == [do.NoteWait(2.5, may_move=True)]
    assert one.step(say.Queued(3, 2.5), 0.0) == [], "it is noted once"
    assert one.step(say.Accepted(), 0.0) == [do.WantGrant()]
    assert one.step(GRANT, 0.0) == [do.Expect(TARGET), do.Say(GRANT)]
    assert one.step(say.Ready(1, "token"), 0.0) == [do.TellReady("token")]
    assert one.step(say.Done(1, (), "report"), 0.0) == [do.Verify(())]
    assert one.step(on.Verified(), 0.0) == [do.Prepare("report")]
    assert one.step(on.Prepared("read"), 0.0)[0] == do.Commit("read")
    assert one.is_over and one.state is ReceiverState.COMMITTED


def test_a_pull_grants_with_its_ask() -> None:
    assert transfer_id(PULL).step(on.Begin(), 0.0) == [do.Expect(TARGET), do.Say(say.Ask())]


@pytest.mark.parametrize("target", [TARGET, Destination(0, (3,), None), Destination(0, (), 9)])
def test_a_copy_is_granted_nothing(target: Destination) -> None:
    lost = taken(transfer_id(COPY), (*BEGUN, say.Accepted(), say.Grant(1, target)))
    assert isinstance(lost[0], do.TellLost) and do.Expect(target) not in lost


def test_a_fetch_tells_that_its_prefix_is_held() -> None:
    one = transfer_id(FETCH)
    for event in (on.Begin(), say.Accepted(), GRANT):
        one.step(event, 0.0)
    assert one.step(say.Held(1), 0.0) == [do.TellHeld()]


def test_a_fetch_is_given_up_to_the_second() -> None:
    one = transfer_id(FETCH, within=2.3)
    one.step(on.Begin(), 0.0)
    assert one.wake(2.0) < 0.31
    one.step(on.Look(), 2.2)
    assert not one.is_over
    one.step(on.Look(), 2.3)
    assert one.is_over


def test_a_drain_is_asked_for_on_the_stream_then_by_calls_until_one_is_answered() -> None:
    one = granted()
    assert do.Say(say.Abort()) in one.step(on.Cancelled(), 10.0)
    assert one.step(on.Look(), 12.9) == []
    assert one.step(on.Look(), 13.0) == [do.CallForDrain()]
    assert one.step(on.Look(), 13.5) == [], "one call at a time"
    one.step(on.DrainAnswered(None), 14.0)
    assert one.step(on.Look(), 14.05) == []
    assert one.step(on.Look(), 14.1) == [do.CallForDrain()]
    drained = FenceReason.DRAIN_ACKNOWLEDGED
    assert one.step(on.DrainAnswered(Drain.DRAINED), 15.0) == [do.Sever(drained)]
    assert one.step(on.Severed(drained), 15.0) == [do.TellFenced(drained)] and one.is_over


def test_a_stream_that_breaks_is_followed_by_a_call_at_once() -> None:
    one = granted()
    lost = one.step(on.StreamBroke("cut"), 1.0)
    assert isinstance(lost[0], do.TellLost) and lost[-1] == do.CallForDrain()


def test_without_an_answer_the_connection_is_given_up_and_its_lease_awaited() -> None:
    one = granted()
    one.step(on.Cancelled(), 10.0)
    one.step(on.Look(), 13.0)
    assert one.step(on.Look(), 20.0) == []
    assert one.step(on.Look(), 20.1) == [do.GiveUp()]
    assert one.step(on.Look(), 20.2) == [], "once"
    answered = on.Look(writer=WriterFacts(answered=20.0))
    assert one.step(answered, 25.0) == []
    assert one.step(answered, 25.1) == [do.Sever(FenceReason.LEASE_EXPIRED)]
    assert one.step(answered, 25.2) == [], "one severing at a time"


def test_a_fence_that_breaks_is_held_again() -> None:
    one = granted()
    one.step(say.Ended(Drain.DRAINED), 10.0)
    one.step(on.Broke("the wire"), 10.0)
    assert one.step(on.Look(), 10.9) == [] and one.is_lost
    assert one.step(on.Look(), 11.0) == [do.Sever(FenceReason.DRAIN_ACKNOWLEDGED)]


def test_messages_of_another_grant_end_the_room_and_no_fence() -> None:
    for message in (say.Ready(2), say.Done(2, ())):
        one = granted()
        one.step(say.Ready(1), 0.0) if isinstance(message, say.Done) else None
        assert isinstance(one.step(message, 1.0)[0], do.TellLost)
        one.step(say.Done(2, ()), 2.0)
        assert not one.fence.answered
    pull = transfer_id(PULL)
    pull.step(on.Begin(), 0.0)
    pull.step(say.Ended(Drain.DRAINED, "old", generation=5), 1.0)
    assert pull.is_lost and not pull.fence.answered


def test_a_grant_that_cannot_be_written_was_never_seen_by_the_sender() -> None:
    one = transfer_id()
    for event in (on.Begin(), say.Accepted()):
        one.step(event, 0.0)
    expect, _ = one.step(GRANT, 0.0)
    lost = one.step(on.Failed(expect, "out of bounds", is_defect=False), 0.0)
    assert lost[-1] == do.Sever(FenceReason.DRAIN_ACKNOWLEDGED)


def test_each_phase_is_marked_when_it_is_passed() -> None:
    order = (Phase.ACCEPTED, Phase.GRANTED, Phase.READY, Phase.DONE, Phase.VERIFIED)
    of_pull = (Phase.GRANTED, Phase.DONE, Phase.VERIFIED)
    for kind, events, phases, first in (
        (HANDOVER, (*UP_TO_DONE, on.Verified()), order, 1.0),
        (PULL, (*BEGUN, say.Done(1, ()), on.Verified()), of_pull, 0.0),
    ):
        one = transfer_id(kind)
        for second, event in enumerate(events):
            one.step(event, float(second))
        marks = [(mark.phase, mark.at) for mark in one.phases.marks]
        assert marks == [(phase, first + at) for at, phase in enumerate(phases)]


@pytest.mark.parametrize(
    ("events", "loss", "reason"),
    [
        ((*BEGUN, on.Stopped("left")), Loss.STREAM, "left"),
        ((*BEGUN, on.StreamBroke("cut")), Loss.STREAM, "cut"),
        ((*BEGUN, say.Contradiction("odd")), Loss.PROTOCOL, "odd"),
        ((*BEGUN, on.GivenUp("busy", Loss.MOVED)), Loss.MOVED, "busy"),
        ((*BEGUN, say.Accepted(), on.Declined()), Loss.NO_ROOM, "no room to receive it now"),
        ((*BEGUN, say.Ended(Drain.DRAINED)), Loss.STREAM, "the prefill node ended the transfer"),
        ((*UP_TO_GRANT, say.Ended(Drain.DRAINED, "its own")), Loss.STREAM, "its own"),
        ((*BEGUN, say.Ready(1)), Loss.PROTOCOL, "knows no READY"),
        ((*UP_TO_GRANT, say.Held(1)), Loss.STREAM, "of another version"),
        ((*UP_TO_GRANT, say.Ready(2)), Loss.STREAM, "ready of generation 2, not 1"),
        ((*UP_TO_GRANT, say.Ready(1), say.Done(2, ())), Loss.STREAM, "done of generation 2"),
        ((*PULLED, say.PullAsked("again")), Loss.STREAM, "pulls twice"),
        ((*BEGUN, say.Accepted(), say.PullAsked("late")), Loss.STREAM, "too late"),
        ((*UP_TO_DONE, on.Verified("bits", differs=True)), Loss.DIGEST, "bits"),
        ((*UP_TO_DONE, on.Verified("windows")), Loss.MISSING, "windows"),
        ((*UP_TO_GRANT, on.Broke("bug")), Loss.PROTOCOL, "internal error: bug"),
        ((*BEGUN, on.Failed(do.WantGrant(), "bug", True)), Loss.PROTOCOL, "internal error: bug"),
        ((*BEGUN, on.Failed(do.WantGrant(), "no", False)), Loss.PROTOCOL, "no"),
        ((*UP_TO_GRANT, on.Failed(do.Expect(TARGET), "x", True)), Loss.PROTOCOL, "error: x"),
        ((*UP_TO_GRANT, on.Failed(do.Expect(TARGET), "x", False)), Loss.STREAM, "x"),
    ],
)
def test_each_loss_has_its_cause_and_reason(
    events: Sequence[Event], loss: Loss, reason: str
) -> None:
    one = transfer_id()
    told, *rest = taken(one, events)
    assert isinstance(told, do.TellLost) and told.loss is loss and reason in told.reason
    assert rest[0] == do.Forget()
    assert one.is_lost is (one.state is ReceiverState.QUARANTINED) is not one.is_over
    pulls = any(isinstance(event, say.PullAsked) for event in events[:-1])
    assert (do.EndPull("its transfer is over") in rest) is pulls


@pytest.mark.parametrize("event", [on.Stopped("left"), on.StreamBroke("cut")])
def test_the_end_of_a_stream_is_no_loss_once_all_was_said(event: Event) -> None:
    one = transfer_id()
    assert taken(one, (*UP_TO_DONE, event)) == [] and one.state is ReceiverState.VERIFYING
    assert one.step(on.Verified(), 1.0) == [do.Prepare("report")]
    assert one.step(on.Prepared("read"), 1.0) == [do.Commit("read"), do.Forget()]


def test_a_refused_room_is_over_and_lets_its_pull_go() -> None:
    refused = [do.TellRefused("why"), do.Forget()]
    one = transfer_id()
    assert taken(one, (*BEGUN, say.Refused("why"))) == refused and one.is_over
    ended = [*refused, do.EndPull("its transfer is over")]
    assert taken(transfer_id(), (*PULLED, say.Refused("why"))) == ended
    assert one.step(on.Look(), 100.0) == [], "it is over"


def test_a_pull_is_served_once_and_ends_when_its_sender_waits_no_longer() -> None:
    one = transfer_id()
    assert taken(one, PULLED) == [do.ServePull("offer")]
    waits = one.step(say.Queued(1, 0.5), 0.0)
    assert waits == [do.NoteWait(0.5, may_move=False)] and one.wait == 0.5
    reason = "the prefill node does not wait any longer"
    assert one.step(say.StopPull(), 0.0) == [do.EndPull(reason)]
    assert taken(transfer_id(), (*BEGUN, say.StopPull())) == []
    assert taken(transfer_id(), (*BEGUN, say.Queued(1, None))) == []


def seconds_to_loss(
    one: Receiving, looks: Sequence[on.Look], most: int = 200
) -> tuple[int, Action]:
    """Return the second and first action of the loss; it is checked each second with these looks in
    turn."""
    for second in range(1, most):
        if done := one.step(looks[second % len(looks)], float(second)):
            return second, done[0]
    raise AssertionError("never lost")


@pytest.mark.parametrize(
    ("kind", "events", "second", "loss"),
    [
        (HANDOVER, BEGUN, 31, Loss.STALLED),
        (HANDOVER, (*BEGUN, say.Accepted()), 31, Loss.NO_ROOM),
        (HANDOVER, UP_TO_GRANT, 31, Loss.STALLED),
        (HANDOVER, UP_TO_DONE[:-1], 31, Loss.STALLED),
        (HANDOVER, UP_TO_DONE, 16, Loss.STALLED),
        (PULL, BEGUN, 6, Loss.STALLED),
        (PULL, (*BEGUN, say.Done(1, ())), 11, Loss.STALLED),
    ],
)
def test_each_state_is_left_after_its_deadline(
    kind: Kind, events: Sequence[Event], second: int, loss: Loss
) -> None:
    one = transfer_id(kind)
    taken(one, events)
    found, told = seconds_to_loss(one, [on.Look()])
    assert isinstance(told, do.TellLost)
    assert (found, told.loss) == (second, loss)


@pytest.mark.parametrize(
    ("events", "looks", "lost"),
    [
        # Waiting in a moving queue still ends by its timeout,
        (BEGUN, [on.Look(pulled=0), on.Look()], None),
        (UP_TO_GRANT, [on.Look(others=1), on.Look(others=2)], (62, Loss.QUEUE_TIMEOUT)),
        # but arriving data prevents it.
        (UP_TO_GRANT, [on.Look(progress=1), on.Look(progress=2)], None),
        (UP_TO_GRANT, [on.Look(1, others=1), on.Look(1, others=2)], (32, Loss.STALLED)),
        (UP_TO_DONE[:-1], [on.Look(others=1), on.Look(others=2)], (31, Loss.STALLED)),
    ],
)
def test_what_moves_a_room_and_what_does_not(
    events: Sequence[Event], looks: Sequence[on.Look], lost: tuple[int, Loss] | None
) -> None:
    one = transfer_id()
    taken(one, events)
    if lost is None:
        with pytest.raises(AssertionError, match="never lost"):
            seconds_to_loss(one, looks)
        return
    second, told = seconds_to_loss(one, looks)
    assert isinstance(told, do.TellLost) and (second, told.loss) == lost


def test_a_queue_that_moves_for_ever_is_left_after_its_own_time() -> None:
    one = transfer_id()
    taken(one, BEGUN)
    for second in range(1, 63):
        one.step(say.Queued(1000 - second), float(second))
        done = one.step(on.Look(), float(second))
        assert bool(done) is (second == 62)
    assert isinstance(done[0], do.TellLost) and done[0].loss is Loss.QUEUE_TIMEOUT


def test_the_next_look_is_as_near_as_what_is_waited_for() -> None:
    one = transfer_id()
    taken(one, BEGUN)
    assert one.wake(5.0) == 1.0
    assert transfer_id(FETCH, within=2.5).wake(3.0) == 0.0
    taken(one, UP_TO_GRANT[1:])
    one.step(on.Cancelled(), 6.0)
    assert one.wake(6.0) == FENCE.look


def test_a_drain_that_was_answered_before_the_loss_is_not_asked_for() -> None:
    one = granted()
    assert one.step(on.DrainAnswered(Drain.DRAINED), 1.0) == []
    drained = do.Sever(FenceReason.DRAIN_ACKNOWLEDGED)
    assert one.step(on.Cancelled(), 1.0) == [do.Forget(), drained]


def test_a_pulls_drain_is_asked_for_on_its_stream_alone() -> None:
    pull = transfer_id(PULL)
    taken(pull, BEGUN)
    assert pull.step(on.Stopped("left"), 0.0)[-1] == do.Say(say.StopPull())
    assert pull.step(on.StreamBroke("cut"), 1.0) == []
    assert pull.step(on.Look(), 9.0) == [], "its drain comes with a renewal"
    late = transfer_id(PULL)
    taken(late, BEGUN)
    assert taken(late, [on.StreamBroke("cut")])[1:] == [do.Forget()]


def test_what_was_under_way_when_a_room_was_lost_changes_nothing_but_its_fence() -> None:
    one = granted()
    one.step(on.Cancelled(), 1.0)
    for event in (say.Ready(1), on.Verified(), on.Failed(do.Forget(), "late", False)):
        assert one.step(event, 1.5) == []
    assert one.step(on.StreamBroke("cut"), 2.0) == [do.CallForDrain()]
    assert one.step(on.StreamBroke("again"), 2.0) == []
    # A broken call is repeated a moment later.
    assert one.step(on.Broke("the call"), 3.0) == []
    assert one.step(on.Look(), 3.05) == [] and one.step(on.Look(), 3.1) == [do.CallForDrain()]
    assert one.step(say.Done(1, ()), 4.0) == [do.Sever(FenceReason.DRAIN_ACKNOWLEDGED)]
    assert one.step(on.Failed(do.Sever(FenceReason.DRAIN_ACKNOWLEDGED), "x", False), 4.0) == []
    assert one.step(on.Look(), 4.9) == []
    assert one.step(on.Look(), 5.0) == [do.Sever(FenceReason.DRAIN_ACKNOWLEDGED)]
