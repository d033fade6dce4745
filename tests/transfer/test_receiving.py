"""The receiving side as a value: how a drain is asked for, when its connection is given up, and
what is held again. Times are given; nothing waits."""

from tasuki.transfer.reports import Drain
from tasuki.transfer.rooms import actions as do
from tasuki.transfer.rooms import events as on
from tasuki.transfer.rooms import messages as say
from tasuki.transfer.rooms.deadlines import PullReceiverDeadlines, ReceiverDeadlines
from tasuki.transfer.rooms.fence import FenceReason, FenceTerms, WriterFacts
from tasuki.transfer.rooms.receiving import Receiving, ReceivingTerms
from tasuki.transfer.rooms.states import COPY, FETCH, HANDOVER, PULL, Kind, ReceiverState
from tasuki.transfer.windows.window import Destination

FENCE = FenceTerms(lease=5.0, retry=1.0, settle=0.0, acknowledge=3.0, patience=10.0)
TARGET = Destination(0, (3, 4), 9)
GRANT = say.Grant(1, TARGET)


def room(kind: Kind = HANDOVER, within: float | None = None) -> Receiving:
    deadlines = PullReceiverDeadlines() if kind is PULL else ReceiverDeadlines()
    made = Receiving(kind, 7, 1, ReceivingTerms(deadlines, FENCE, within), 0.0)
    if kind is PULL:
        made.grant_first(GRANT)
    return made


def granted() -> Receiving:
    made = room()
    for event in (on.Begin(), say.Accepted(), GRANT):
        made.step(event, 0.0)
    return made


def test_a_hand_over_asks_wants_grants_and_commits() -> None:
    one = room()
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
    assert room(PULL).step(on.Begin(), 0.0) == [do.Expect(TARGET), do.Say(say.Ask())]


def test_a_copy_is_granted_nothing() -> None:
    one = room(COPY)
    for event in (on.Begin(), say.Accepted()):
        one.step(event, 0.0)
    lost = one.step(GRANT, 0.0)
    assert isinstance(lost[0], do.TellLost) and do.Expect(TARGET) not in lost


def test_a_fetch_tells_that_its_prefix_is_held() -> None:
    one = room(FETCH)
    for event in (on.Begin(), say.Accepted(), GRANT):
        one.step(event, 0.0)
    assert one.step(say.Held(1), 0.0) == [do.TellHeld()]


def test_a_fetch_is_given_up_to_the_second() -> None:
    one = room(FETCH, within=2.3)
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
    pull = room(PULL)
    pull.step(on.Begin(), 0.0)
    pull.step(say.Ended(Drain.DRAINED, "old", generation=5), 1.0)
    assert pull.is_lost and not pull.fence.answered


def test_a_grant_that_cannot_be_written_was_never_seen_by_the_sender() -> None:
    one = room()
    for event in (on.Begin(), say.Accepted()):
        one.step(event, 0.0)
    expect, _ = one.step(GRANT, 0.0)
    lost = one.step(on.Failed(expect, "out of bounds", is_defect=False), 0.0)
    assert lost[-1] == do.Sever(FenceReason.DRAIN_ACKNOWLEDGED)
