"""The record of ended transfers, by connection. No number is used twice, and no forced drain is
forgotten."""

import pytest

from tasuki.transfer.lifecycle.ended_transfers import EndedTransfers
from tasuki.transfer.reports import Drain

DRAINED, FORCED = Drain.DRAINED, Drain.FORCED


@pytest.fixture
def ended() -> EndedTransfers:
    """Return the ended transfers of two connections; only the first is alive."""
    made = EndedTransfers(lambda name: name == "first", transfers=2, connections=2)
    made.began("first")
    made.began("second")
    return made


def test_a_room_is_remembered_by_its_connection_number_and_generation(
    ended: EndedTransfers,
) -> None:
    ended.remember("first", 7, 1, DRAINED)
    assert ended.drain("first", 7, 1) is DRAINED
    for other in (("second", 7, 1), ("first", 8, 1), ("first", 7, 2), ("third", 7, 1)):
        assert ended.drain(*other) is None
    assert ended.refusal("first", 7, 1, is_open=False) == "transfer 7 is over: take a new number"
    assert ended.refusal("first", 7, 2, is_open=True) == "transfer 7 is open: take a new number"
    assert ended.refusal("first", 7, 2, is_open=False) is None


def test_the_last_drained_rooms_are_remembered_and_every_forced_one(ended: EndedTransfers) -> None:
    for number in range(4):
        ended.remember("first", number, 1, FORCED)
        ended.remember("first", 10 + number, 1, DRAINED)
    assert [ended.drain("first", number, 1) for number in range(4)] == [FORCED] * 4
    drains = [ended.drain("first", 10 + number, 1) for number in range(4)]
    assert drains == [None, None, DRAINED, DRAINED]
    ended.remember("first", 0, 1, DRAINED)
    assert ended.drain("first", 0, 1) is FORCED


def test_an_abort_bars_its_room_and_repeats_what_a_forced_one_came_to(
    ended: EndedTransfers,
) -> None:
    assert ended.aborted("first", 7, 1) is DRAINED
    assert ended.refusal("first", 7, 1, is_open=False) is not None
    ended.remember("first", 8, 1, FORCED)
    assert ended.aborted("first", 8, 1) is FORCED


def test_the_oldest_connection_that_is_over_is_forgotten_and_nothing_is_said_of_it(
    ended: EndedTransfers,
) -> None:
    ended.remember("second", 7, 1, FORCED)
    ended.began("third")
    assert [ended.knows(name) for name in ("first", "second", "third")] == [True, False, True]
    ended.remember("second", 7, 1, DRAINED)
    assert ended.drain("second", 7, 1) is None and not ended.knows("second")
    ended.began("fourth")
    assert [ended.knows(name) for name in ("first", "third", "fourth")] == [True, False, True]
