"""The sending side and the heartbeat as values. Times are given; nothing waits."""

from collections.abc import Sequence

import pytest

from tasuki.transfer.chunks.chunk import Destination
from tasuki.transfer.errors import PeerInvalid
from tasuki.transfer.lifecycle import actions as do
from tasuki.transfer.lifecycle import events as on
from tasuki.transfer.lifecycle import messages as say
from tasuki.transfer.lifecycle.actions import Loss
from tasuki.transfer.lifecycle.deadlines import PullSenderDeadlines, SenderDeadlines
from tasuki.transfer.lifecycle.events import Event
from tasuki.transfer.lifecycle.heartbeats import Beating, HeartbeatTimeout, Renewing
from tasuki.transfer.lifecycle.sending import Sending, SendingTerms
from tasuki.transfer.lifecycle.states import FETCH, HANDOVER, PULL, Kind, SenderState
from tasuki.transfer.reports import Drain, Phase, SendReport

TARGET = Destination(0, (3, 4), 9)
GRANT = say.Grant(1, TARGET, "grant")
REPORT = SendReport(0, 0, 0, 0.0, 0.0, (), ())
BEGUN: tuple[Event, ...] = (on.Begin(),)
LEASED: tuple[Event, ...] = (*BEGUN, on.Leased())
UP_TO_OPEN: tuple[Event, ...] = (*LEASED, GRANT, on.Opened())
PINNED: tuple[Event, ...] = (*BEGUN, on.Pinned("source"), on.Opened())


def transfer_id(kind: Kind = HANDOVER, *, awaits_gateway: bool = False) -> Sending:
    deadlines = PullSenderDeadlines() if kind is PULL else SenderDeadlines()
    made = Sending(kind, 7, 1, SendingTerms(deadlines, 1.0, awaits_gateway), 0.0)
    if kind is PULL:
        made.target(TARGET)
    return made


def taken(made: Sending, events: Sequence[Event], now: float = 0.0) -> list[do.Action]:
    """Return the actions of the last of these events."""
    return [made.step(event, now) for event in events][-1]


def streaming(kind: Kind = HANDOVER) -> Sending:
    made = transfer_id(kind)
    taken(made, UP_TO_OPEN)
    assert made.state is SenderState.STREAMING
    return made


def said(done: list[do.Action]) -> list[say.Message]:
    return [action.message for action in done if isinstance(action, do.Say)]


def test_a_hand_over_opens_at_its_grant_and_ends_with_its_report() -> None:
    one = transfer_id()
    assert one.step(on.Begin(), 0.0) == [do.Reserve()]
    assert one.step(on.Leased(), 0.0) == [do.Say(say.Accepted())]
    assert one.step(GRANT, 0.0) == [do.Open(TARGET)]
    assert one.step(on.Opened(), 0.0) == [do.Start("grant")]
    assert one.step(on.Opened(), 0.0) == [], "once"
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
    pull = transfer_id(PULL)
    assert pull.step(on.Begin(), 0.0) == [do.Reserve()]
    assert pull.step(on.Pinned("source"), 0.0) == [do.Open(TARGET)]
    assert pull.step(on.Opened(), 0.0) == [do.Plan("source")]
    assert isinstance(said(pull.step(on.Sent(REPORT), 0.0))[0], say.Done)


def test_a_pull_that_cannot_be_opened_is_refused() -> None:
    pull = transfer_id(PULL)
    pull.step(on.Begin(), 0.0)
    (opening,) = pull.step(on.Pinned("source"), 0.0)
    refused = pull.step(on.Failed(opening, "no such id", is_defect=False), 0.0)
    assert said(refused) == [say.Ended(Drain.DRAINED, "no such id", 1)]
    assert pull.state is SenderState.REFUSED


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
    one = transfer_id()
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
    one = transfer_id(awaits_gateway=True)
    assert one.step(on.Begin(), 0.0) == []
    assert one.step(on.Met(), 1.0) == [do.Reserve()]
    other = transfer_id(awaits_gateway=True)
    other.step(on.Begin(), 0.0)
    (ended,) = said(other.step(on.Missed(), 10.0))
    assert isinstance(ended, say.Ended) and other.is_over


def test_what_breaks_by_itself_ends_without_a_drain_of_its_own() -> None:
    one = streaming()
    done = one.step(on.SendBroke("the wire", Drain.FORCED, endpoint_failed=True), 0.0)
    assert said(done) == [say.Ended(Drain.FORCED, "the wire", 1)]
    assert one.endpoint_failed and one.drain is Drain.FORCED


def test_a_lease_counts_from_its_question_and_nothing_unasked_grants_one() -> None:
    beating = Beating(HeartbeatTimeout(3.0, 0.0, 0.2))
    assert beating.heartbeat(10.0) == (1, 0) and beating.heartbeat(10.2) == (2, 0)
    assert beating.renewed(1, 12.0) == 10.0
    assert beating.renewed(1, 12.5) is None, "once"
    assert beating.renewed(9, 12.6) is None, "nobody asked"
    assert beating.heartbeat(13.0) == (3, 9), "and it is confirmed"
    renewing = Renewing(HeartbeatTimeout(3.0, 0.0), 5.0)
    assert renewing.heartbeat(1, 0, 6.0) == 5.0, "the opening asks"
    assert renewing.heartbeat(2, 1, 7.0) == 6.0
    assert renewing.heartbeat(3, 5, 8.0) is None


def test_a_renewal_forgets_the_beats_before_it() -> None:
    beating = Beating(HeartbeatTimeout(3.0, 0.0, 0.2))
    for now in (1.0, 2.0, 3.0):
        beating.heartbeat(now)
    assert beating.renewed(2, 3.5) == 2.0
    assert beating.renewed(1, 3.6) is None and beating.renewed(3, 3.7) == 3.0


def test_a_peer_that_confirms_nothing_is_not_beaten_to_for_ever() -> None:
    renewing = Renewing(HeartbeatTimeout(3.0, 0.0), 0.0)
    with pytest.raises(PeerInvalid):
        for sequence in range(1, 400):
            renewing.heartbeat(sequence, 0, 1.0)


@pytest.mark.parametrize(
    ("kind", "events", "phases"),
    [
        (
            HANDOVER,
            (*UP_TO_OPEN, on.Announced(), on.Sent(REPORT)),
            [(Phase.ACCEPTED, 1), (Phase.GRANTED, 3), (Phase.READY, 4), (Phase.DONE, 5)],
        ),
        (
            PULL,
            (*PINNED, on.Sent(REPORT)),
            [(Phase.GRANTED, 0), (Phase.ACCEPTED, 2), (Phase.DONE, 3)],
        ),
    ],
)
def test_each_phase_is_marked_when_it_is_passed(
    kind: Kind, events: Sequence[Event], phases: list[tuple[Phase, int]]
) -> None:
    one = transfer_id(kind)
    for second, event in enumerate(events):
        one.step(event, float(second))
    assert [(mark.phase, mark.at) for mark in one.phases.marks] == phases


@pytest.mark.parametrize(
    ("kind", "events", "drains", "reason"),
    [
        (HANDOVER, (on.Stopped("left"),), False, "left"),
        (HANDOVER, (*BEGUN, on.Stopped("left")), True, "left"),
        (HANDOVER, (*BEGUN, say.Contradiction("odd")), True, "odd"),
        (HANDOVER, (*BEGUN, say.Abort()), True, None),
        (HANDOVER, (*BEGUN, on.ReceiverLost()), True, None),
        (HANDOVER, (*BEGUN, GRANT), True, "QUEUED knows no GRANT"),
        (
            HANDOVER,
            (*LEASED, say.Grant(2, TARGET)),
            True,
            "grant is of generation 2, transfer of 1",
        ),
        (HANDOVER, (*LEASED, on.Refusal("it broke")), True, "it broke"),
        (HANDOVER, (*UP_TO_OPEN, on.Broke("bug")), True, "internal error: bug"),
        (HANDOVER, (*UP_TO_OPEN, say.Ready(1)), True, "Ready is not expected on a transfer that"),
        (HANDOVER, (*BEGUN, on.Failed(do.Reserve(), "full", False)), True, "full"),
        (HANDOVER, (*BEGUN, on.Failed(do.Reserve(), "bug", True)), True, "internal error: bug"),
        (HANDOVER, (*LEASED, GRANT, on.Failed(do.Open(TARGET), "far", False)), True, "far"),
        (PULL, (*BEGUN, on.Stopped("left")), True, "left"),
        (PULL, (*PINNED, on.Failed(do.Plan("source"), "gone", False)), True, "gone"),
        (PULL, (*PINNED, on.Pinned("again")), True, "STREAMING knows no PINNED"),
    ],
)
def test_each_stop_drains_and_says_its_reason(
    kind: Kind, events: Sequence[Event], drains: bool, reason: str | None
) -> None:
    one = transfer_id(kind)
    done = taken(one, events)
    if drains:
        assert done == [do.DrainNow()] and not one.is_over
        # Events in flight change nothing.
        late: tuple[Event, ...] = (on.Announced(), on.Sent(REPORT), on.Leased(), GRANT)
        for event in late if kind is HANDOVER else (on.Pinned(), on.Stopped("late")):
            assert one.step(event, 0.0) == []
        done = one.step(on.Drained(Drain.DRAINED), 0.0)
    (ended,) = said(done)
    assert isinstance(ended, say.Ended) and ended.drain is Drain.DRAINED
    assert done == [do.Say(ended)], "it has no pull"
    assert ended.generation == 1 and one.is_over and one.given_up is None
    assert ended.reason is None if reason is None else reason in str(ended.reason)


@pytest.mark.parametrize(
    ("kind", "events", "is_late", "words"),
    [
        (HANDOVER, BEGUN, True, say.Refused("payload")),
        (HANDOVER, BEGUN, False, say.Refused("payload")),
        (FETCH, BEGUN, False, say.Refused("payload")),
        (PULL, BEGUN, False, say.Ended(Drain.DRAINED, "no", 1)),
    ],
)
def test_a_refusal_before_anything_is_open_ends_a_room(
    kind: Kind, events: Sequence[Event], is_late: bool, words: say.Message
) -> None:
    one = transfer_id(kind)
    refusal = on.Refusal("no", is_late, "payload")
    assert said(taken(one, (*events, refusal))) == [words]
    assert one.state is SenderState.REFUSED and one.is_over
    assert one.given_up is (Loss.QUEUE_TIMEOUT if is_late else None)
    stopped = transfer_id(kind)
    assert taken(stopped, (*events, on.Stopped("left"), refusal)) == []
    assert stopped.state is SenderState.DRAINING


def seconds_to_stop(one: Sending, looks: Sequence[on.Look]) -> tuple[int, list[do.Action]]:
    """Return the second and the actions of the stop; it is checked each second with these looks in
    turn."""
    for second in range(1, 200):
        done = one.step(looks[second % len(looks)], float(second))
        if done and not isinstance(done[0], do.Say):
            return second, done
    raise AssertionError("never stopped")


@pytest.mark.parametrize(
    ("kind", "events", "second", "given_up"),
    [
        (HANDOVER, BEGUN, 66, Loss.QUEUE_TIMEOUT),
        (HANDOVER, LEASED, 46, Loss.STALLED),
        (HANDOVER, UP_TO_OPEN, 66, Loss.STALLED),
        (HANDOVER, (*UP_TO_OPEN, on.Announced()), 31, Loss.STALLED),
        (HANDOVER, (*UP_TO_OPEN, on.Sent(REPORT)), 61, Loss.STALLED),
        (PULL, BEGUN, 11, None),
        (PULL, PINNED, 31, None),
    ],
)
def test_each_state_is_left_after_its_deadline(
    kind: Kind, events: Sequence[Event], second: int, given_up: Loss | None
) -> None:
    one = transfer_id(kind)
    taken(one, events)
    assert seconds_to_stop(one, [on.Look()]) == (second, [do.DrainNow()])
    assert one.given_up is given_up
    (ended,) = said(one.step(on.Drained(Drain.DRAINED), float(second)))
    waited = f" for {float(second - 1)} s"
    assert isinstance(ended, say.Ended) and waited in str(ended.reason)


@pytest.mark.parametrize(
    "looks", [[on.Look(1), on.Look(2)], [on.Look(pulled=1), on.Look(pulled=2)]]
)
def test_what_moves_is_not_given_up(looks: Sequence[on.Look]) -> None:
    with pytest.raises(AssertionError, match="never stopped"):
        seconds_to_stop(streaming(), looks)


def test_a_wait_is_said_while_the_room_waits() -> None:
    one = transfer_id()
    taken(one, BEGUN)
    assert said(one.step(on.Waits(2.5), 0.0)) == [say.Queued(0, 2.5)]
    one.step(on.Moved(4), 0.0)
    assert said(one.step(on.Waits(1.5), 0.1)) == [say.Queued(4, 1.5)]
    assert said(one.step(on.Moved(3), 0.25)) == [say.Queued(3)], "a quarter of a second is enough"
    assert one.step(on.Moved(3), 0.9) == [], "it is where it was"
    one.step(on.Leased(), 0.9)
    for late in (on.Waits(1.0), on.Moved(1), on.Look()):
        assert one.step(late, 5.0) == []


def test_a_pull_begins_and_ends_with_its_room() -> None:
    one = transfer_id()
    assert taken(one, (*BEGUN, on.PullWanted("offer"))) == [do.BeginPull("offer")]
    over = do.EndPull("its transfer is over")
    one.step(on.Stopped("left"), 0.0)
    assert one.step(on.Drained(Drain.DRAINED), 0.0)[-1] == over
    for end in (on.Refusal("no"), on.SendBroke("wire", Drain.DRAINED, False)):
        other = transfer_id()
        done = taken(other, (*BEGUN, on.PullWanted("offer"), end))
        assert done[-1] == over and other.is_over and not other.endpoint_failed


def test_a_drain_that_comes_behind_its_deadline_changes_nothing() -> None:
    one = streaming()
    one.step(say.Abort(), 0.0)
    one.step(on.Look(), 1.0)
    assert one.step(say.Abort(), 1.0) == [], "once"
    (ended,) = said(one.step(on.Drained(Drain.FORCED), 1.0))
    assert ended == say.Ended(Drain.FORCED, None, 1) and one.drain is Drain.FORCED
    assert one.step(on.Drained(Drain.DRAINED), 2.0) == [] and one.drain is Drain.FORCED


def test_a_gateways_call_that_is_missed_late_is_not_missed() -> None:
    one = transfer_id(awaits_gateway=True)
    taken(one, (*BEGUN, on.Met()))
    assert one.step(on.Missed(), 1.0) == [] and one.state is SenderState.QUEUED
