"""A sender that awaits pictures, and its receiver: the state, its bound, and what ends it."""

from typing import Any

import pytest

from tasuki.transfer.lifecycle import actions as do
from tasuki.transfer.lifecycle import events as on
from tasuki.transfer.lifecycle import messages as say
from tasuki.transfer.lifecycle.actions import Loss
from tasuki.transfer.lifecycle.deadlines import ReceiverDeadlines, SenderDeadlines
from tasuki.transfer.lifecycle.fence import FenceTerms
from tasuki.transfer.lifecycle.receiving import Receiving, ReceivingTerms
from tasuki.transfer.lifecycle.sending import Sending, SendingTerms
from tasuki.transfer.lifecycle.states import FETCH, HANDOVER, ReceiverState, SenderState
from tasuki.transfer.reports import Drain

BOUND = SenderDeadlines().awaiting_media


def sender() -> Sending:
    side = Sending(HANDOVER, 7, 1, SendingTerms(SenderDeadlines(), 1.0), 0.0)
    side.step(on.Begin(), 0.0)
    assert side.step(on.MediaWanted((0, 2)), 0.0) == [do.Say(say.MediaWanted((0, 2)))]
    assert side.state is SenderState.AWAITING_MEDIA
    return side


def receiver() -> Receiving:
    terms = ReceivingTerms(ReceiverDeadlines(), FenceTerms(5.0, 1.0, 0.0, 3.0, 10.0))
    side = Receiving(HANDOVER, 7, 1, terms, 0.0)
    side.step(on.Begin(), 0.0)
    return side


def looked(side: Sending | Receiving, seconds: int, pieces: int = 0) -> list[Any]:
    """Look once a second, with `pieces` more pieces each time; return the first actions that are
    not a queue position."""
    for second in range(1, seconds + 1):
        found = side.step(on.Look(pieces=second * pieces), float(second))
        found = [one for one in found if not isinstance(getattr(one, "message", 0), say.Queued)]
        if found:
            return [second, *found]
    return []


def test_pictures_that_come_put_the_prompt_back_in_its_queue() -> None:
    side = sender()
    assert side.step(on.MediaCame({0: (b"1",)}), 1.0) == [do.TakeMedia({0: (b"1",)})]
    assert side.state is SenderState.QUEUED
    # Another picture may be needed after an eviction.
    assert side.step(on.MediaWanted((1,)), 2.0) == [do.Say(say.MediaWanted((1,)))]
    side.step(on.MediaCame({}), 3.0)
    assert side.step(on.Leased(), 4.0) == [do.Say(say.Accepted())]


def test_a_sender_without_a_piece_gives_up_at_its_bound() -> None:
    side = sender()
    second, *actions = looked(side, 100)
    assert BOUND < second <= BOUND + 2 and actions == [do.DrainNow()]
    assert side.given_up is Loss.STALLED
    (end,) = side.step(on.Drained(Drain.DRAINED), 50.0)
    assert isinstance(end.message, say.Ended) and "pieces are awaited" in end.message.reason


def test_a_piece_is_progress() -> None:
    assert not looked(sender(), 100, pieces=1)


@pytest.mark.parametrize("event", [say.Abort(), on.ReceiverLost(), on.Stopped("wrong bytes")])
def test_each_end_while_pictures_are_awaited_drains(event: Any) -> None:
    side = sender()
    assert side.step(event, 1.0) == [do.DrainNow()]
    assert side.step(on.MediaCame({}), 1.0) == []
    assert side.step(on.MediaWanted((1,)), 1.0) == []
    side.step(on.Drained(Drain.DRAINED), 2.0)
    assert side.state is SenderState.ENDED


def test_an_engine_may_refuse_while_pictures_are_awaited() -> None:
    side = sender()
    assert side.step(on.Refusal("draining", payload="said"), 1.0) == [do.Say(say.Refused("said"))]
    assert side.is_over


def test_a_receiver_sends_what_is_asked_for_until_it_is_accepted() -> None:
    side = receiver()
    assert side.step(say.MediaWanted((0,)), 1.0) == [do.SendMedia((0,))]
    assert side.step(say.MediaWanted((1,)), 2.0) == [do.SendMedia((1,))]
    side.step(say.Accepted(), 3.0)
    lost, *_ = side.step(say.MediaWanted((2,)), 4.0)
    assert isinstance(lost, do.TellLost) and lost.loss is Loss.PROTOCOL


def test_a_fetch_sends_no_pictures() -> None:
    terms = ReceivingTerms(ReceiverDeadlines(), FenceTerms(5.0, 1.0, 0.0, 3.0, 10.0))
    side = Receiving(FETCH, 7, 1, terms, 0.0)
    side.step(on.Begin(), 0.0)
    lost, *_ = side.step(say.MediaWanted((0,)), 1.0)
    assert isinstance(lost, do.TellLost)


def test_taken_pieces_are_progress_in_the_queue() -> None:
    """Neither the bound of a position nor that of the whole queue counts while pieces are taken."""
    side = receiver()
    side.step(say.MediaWanted((0,)), 0.0)
    assert not looked(side, 200, pieces=1)
    silent = receiver()
    silent.step(say.MediaWanted((0,)), 0.0)
    second, lost, *_ = looked(silent, 200)
    assert lost.loss is Loss.STALLED and second <= ReceiverDeadlines().reserved + 2
    assert silent.state is ReceiverState.ENDED
