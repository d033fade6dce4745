"""The sending side and the heartbeat as values. Times are given; nothing waits."""

import pytest

from tasuki.transfer.errors import PeerInvalid
from tasuki.transfer.reports import Drain, SendReport
from tasuki.transfer.rooms import actions as do
from tasuki.transfer.rooms import events as on
from tasuki.transfer.rooms import messages as say
from tasuki.transfer.rooms.actions import Loss
from tasuki.transfer.rooms.connections import Beating, Renewing, Silence
from tasuki.transfer.rooms.deadlines import PullSenderDeadlines, SenderDeadlines
from tasuki.transfer.rooms.sending import Sending, SendingTerms
from tasuki.transfer.rooms.states import FETCH, HANDOVER, PULL, Kind, SenderState
from tasuki.transfer.windows.window import Destination

TARGET = Destination(0, (3, 4), 9)
GRANT = say.Grant(1, TARGET, "grant")
REPORT = SendReport(0, 0, 0, 0.0, 0.0, (), ())


def room(kind: Kind = HANDOVER, *, awaits_gateway: bool = False) -> Sending:
    deadlines = PullSenderDeadlines() if kind is PULL else SenderDeadlines()
    made = Sending(kind, 7, 1, SendingTerms(deadlines, 1.0, awaits_gateway), 0.0)
    if kind is PULL:
        made.target(TARGET)
    return made


def streaming(kind: Kind = HANDOVER) -> Sending:
    made = room(kind)
    for event in (on.Begin(), on.Leased(), GRANT, on.Opened()):
        made.step(event, 0.0)
    assert made.state is SenderState.STREAMING
    return made


def said(done: list[do.Action]) -> list[say.Message]:
    return [action.message for action in done if isinstance(action, do.Say)]


def test_a_hand_over_opens_at_its_grant_and_ends_with_its_report() -> None:
    one = room()
    assert one.step(on.Begin(), 0.0) == [do.Reserve()]
    assert one.step(on.Leased(), 0.0) == [do.Say(say.Accepted())]
    assert one.step(GRANT, 0.0) == [do.Open(TARGET)]
    assert one.step(on.Opened(), 0.0) == [do.Start("grant")]
    assert said(one.step(on.Announced("token"), 0.0)) == [say.Ready(1, "token")]
    (done,) = said(one.step(on.Sent(REPORT), 0.0))
    assert isinstance(done, say.Done) and one.is_over and one.drain is Drain.DRAINED


def test_a_token_behind_the_last_flush_ends_the_room_too() -> None:
    one = streaming()
    assert one.step(on.Sent(REPORT), 0.0) == []
    ready, done = said(one.step(on.Announced("token"), 0.0))
    assert ready == say.Ready(1, "token") and isinstance(done, say.Done)


def test_a_fetch_says_held_and_a_pull_says_nothing_before_its_end() -> None:
    assert said(streaming(FETCH).step(on.Announced(), 0.0)) == [say.Held(1)]
    pull = room(PULL)
    assert pull.step(on.Begin(), 0.0) == [do.Reserve()]
    assert pull.step(on.Pinned("source"), 0.0) == [do.Open(TARGET)]
    assert pull.step(on.Opened(), 0.0) == [do.Plan("source")]
    assert isinstance(said(pull.step(on.Sent(REPORT), 0.0))[0], say.Done)


def test_a_pull_that_cannot_be_opened_is_refused() -> None:
    pull = room(PULL)
    pull.step(on.Begin(), 0.0)
    (opening,) = pull.step(on.Pinned("source"), 0.0)
    refused = pull.step(on.Failed(opening, "no such id", is_defect=False), 0.0)
    assert said(refused) == [say.Ended(Drain.DRAINED, "no such id", 1)]
    assert pull.state is SenderState.REFUSED


def test_a_grant_of_another_generation_opens_nothing() -> None:
    one = room()
    for event in (on.Begin(), on.Leased()):
        one.step(event, 0.0)
    assert one.step(say.Grant(2, TARGET), 0.0) == [do.DrainNow()]


def test_a_stop_drains_and_keeps_its_first_reason() -> None:
    one = streaming()
    assert one.step(on.Stopped("first"), 0.0) == [do.DrainNow()]
    assert one.step(on.Stopped("second"), 0.0) == []
    assert said(one.step(on.Drained(Drain.DRAINED), 0.0)) == [say.Ended(Drain.DRAINED, "first", 1)]


def test_a_drain_that_does_not_come_is_forced_after_its_deadline() -> None:
    one = streaming()
    one.step(say.Abort(), 0.0)
    for second in range(1, 11):
        assert one.step(on.Look(), float(second)) == []
    (ended,) = said(one.step(on.Look(), 11.0))
    assert ended == say.Ended(Drain.FORCED, None, 1) and one.drain is Drain.FORCED


def test_a_room_that_waits_says_so_each_second_and_is_given_up_as_late() -> None:
    one = room()
    one.step(on.Begin(), 0.0)
    assert said(one.step(on.Moved(3), 0.5)) == [say.Queued(3)]
    assert one.step(on.Moved(2), 0.6) == [], "it was said a moment ago"
    assert said(one.step(on.Look(), 1.0)) == [say.Queued(2)]
    assert one.step(on.Look(), 1.5) == []
    for second in range(2, 66):
        one.step(on.Look(), float(second))
    assert one.step(on.Look(), 66.1) == [do.DrainNow()]
    assert one.given_up is Loss.QUEUE_TIMEOUT


def test_a_room_of_a_gateway_waits_for_both_calls() -> None:
    one = room(awaits_gateway=True)
    assert one.step(on.Begin(), 0.0) == []
    assert one.step(on.Met(), 1.0) == [do.Reserve()]
    other = room(awaits_gateway=True)
    other.step(on.Begin(), 0.0)
    (ended,) = said(other.step(on.Missed(), 10.0))
    assert isinstance(ended, say.Ended) and other.is_over


def test_what_breaks_by_itself_ends_without_a_drain_of_its_own() -> None:
    one = streaming()
    done = one.step(on.SendBroke("the wire", Drain.FORCED, endpoint_failed=True), 0.0)
    assert said(done) == [say.Ended(Drain.FORCED, "the wire", 1)]
    assert one.endpoint_failed and one.drain is Drain.FORCED


def test_a_lease_counts_from_its_question_and_nothing_unasked_grants_one() -> None:
    beating = Beating(Silence(3.0, 0.0, 0.2))
    assert beating.beat(10.0) == (1, 0) and beating.beat(10.2) == (2, 0)
    assert beating.renewed(1, 12.0) == 10.0
    assert beating.renewed(1, 12.5) is None, "once"
    assert beating.renewed(9, 12.6) is None, "nobody asked"
    assert beating.beat(13.0) == (3, 9), "and it is confirmed"
    renewing = Renewing(Silence(3.0, 0.0), 5.0)
    assert renewing.beat(1, 0, 6.0) == 5.0, "the opening asks"
    assert renewing.beat(2, 1, 7.0) == 6.0
    assert renewing.beat(3, 5, 8.0) is None


def test_a_renewal_forgets_the_beats_before_it() -> None:
    beating = Beating(Silence(3.0, 0.0, 0.2))
    for now in (1.0, 2.0, 3.0):
        beating.beat(now)
    assert beating.renewed(2, 3.5) == 2.0
    assert beating.renewed(1, 3.6) is None and beating.renewed(3, 3.7) == 3.0


def test_a_peer_that_confirms_nothing_is_not_beaten_to_for_ever() -> None:
    renewing = Renewing(Silence(3.0, 0.0), 0.0)
    with pytest.raises(PeerInvalid):
        for sequence in range(1, 400):
            renewing.beat(sequence, 0, 1.0)
