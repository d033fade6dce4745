"""A decode engine asks for no more transfers than it has places and decodes all granted ones.
Prompts wait for memory in order of arrival, whether computed here or on a prefill node."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tasuki.engine import messages as m
from tests.engine.test_scheduler_failures import counted
from tests.harness.decode_engine import DecodeNode
from tests.harness.waiting import ManualClock

LONG, SHORT = 100, 40
"""Tokens of prompts sent to a prefill node and of local ones."""


Make = Callable[..., DecodeNode]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda **settings: DecodeNode(tmp_path, **settings)


def short_of_memory(make: Make) -> DecodeNode:
    """Return a node that decodes "runs" and has a transfer "room"; its memory fits only after
    "runs" has ended."""
    node = make(slabs=8)
    node.want_each(["runs"], SHORT, 300)
    node.want_each(["room"], node.engine.max_request_tokens - 8, 4)
    return node


def test_what_was_granted_is_decoded_though_more_wait(make: Make) -> None:
    node = make(max_batch=2)
    names = [f"r{number}" for number in range(6)]
    node.want_each(names, LONG, 12)
    # One more than there are rows.
    assert node.asked == names[:3]
    node.hand_over()
    node.steps(10)
    counts = [len(node.tokens(name)) for name in names[:3]]
    assert min(counts) >= 6, counts
    for _ in range(50):
        node.hand_over()
        node.step()
    assert all(len(node.tokens(name)) == 12 for name in names)
    node.assert_at_rest()


def test_answers_that_take_turns_are_those_of_wide_forwards(make: Make) -> None:
    wide, narrow = make(max_batch=16), make(max_batch=2)
    for node in (wide, narrow):
        for number in range(3):
            node.want(f"r{number}", LONG, 7, seed=1 + number)
        node.step()
        node.hand_over()
        node.run()
    for name in ("r0", "r1", "r2"):
        assert wide.tokens(name) == narrow.tokens(name) != []


def test_a_prompt_of_here_gets_the_next_seat_before_rooms_that_came_after_it(make: Make) -> None:
    node = make(max_batch=2)
    node.want_each(["r0", "r1", "r2"], LONG, 1000)
    node.hand_over()
    node.want("here", SHORT, 5)
    node.steps(2)
    assert node.asked == ["r0", "r1", "r2"] and not node.tokens("here")
    node.want("after", LONG, 50)
    node.steps(2)
    node.leave("r0")
    node.steps(2)
    assert "after" not in node.asked and not node.tokens("here"), "two run"
    node.leave("r1")
    node.steps(10)
    assert len(node.tokens("here")) == 5 and "after" in node.asked


def test_a_prompt_of_here_is_computed_beside_a_crowd(make: Make) -> None:
    """Transfers that arrive while its forwards run leave it a row."""
    node = make(max_batch=2, prefill_chunk_tokens=64)
    node.want_each(["r0", "r1", "r2"], LONG, 1000)
    for name in node.asked:
        node.accept(name)
    node.post(m.PeersChanged(False))
    node.want("here", 5 * LONG, 5)
    node.step()
    for name in node.asked:
        node.complete(name)
    node.steps(16)
    assert len(node.tokens("here")) == 5
    assert min(len(node.tokens(name)) for name in ("r0", "r1", "r2")) >= 5


def test_a_blocked_grant_asks_the_cache_nothing_until_room_may_have_come(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = short_of_memory(make)
    told: Counter[str] = Counter()
    with counted(monkeypatch) as calls:
        node.accept("room")
        assert calls["allocate_to_receive"] == 1 and not node.granted
        for _ in range(15):
            version = node.engine._cache.room_version
            calls.clear()
            node.step()
            if version == node.engine._cache.room_version:
                told += calls
    assert not node.granted
    assert told["allocate_to_receive"] == told["match"] == 0, told
    node.leave("runs")
    node.step()
    assert node.granted == ["room"]


def test_nothing_is_asked_for_while_a_room_waits_for_memory(make: Make) -> None:
    node = short_of_memory(make)
    node.accept("room")
    node.want("next", LONG, 4)
    node.steps(3)
    assert node.asked == ["room"]
    node.leave("runs")
    node.steps(2)
    assert node.granted == ["room"] and node.asked == ["room", "next"]


def test_a_prompt_of_here_waits_behind_a_room_that_waits_for_memory(make: Make) -> None:
    node = short_of_memory(make)
    node.accept("room")
    node.want("here", SHORT, 4)
    node.steps(5)
    assert not node.granted and not node.tokens("here"), "it would have fitted"
    node.leave("runs")
    node.step()
    assert node.granted == ["room"]
    node.complete("room")
    node.run()
    assert len(node.tokens("here")) == len(node.tokens("room")) == 4
    node.assert_at_rest()


def test_a_room_waits_behind_an_older_prompt_that_came_back(make: Make) -> None:
    node = make(slabs=8)
    fillers = [f"runs {number}" for number in range(8)]
    for name in fillers:
        node.want(name, SHORT, 100)
    node.steps(3)
    begun = [name for name in fillers if node.tokens(name)]
    assert 0 < len(begun) < len(fillers), "all fitted"
    for name in fillers[len(begun) :]:
        node.leave(name)
    node.want_each(["old", "young"], LONG, 4)
    assert node.asked == ["old", "young"]
    node.post(m.HandoverFailed(node.transfer_id("old"), "gone"))
    node.accept("young")
    node.steps(2)
    assert not node.granted and not node.tokens("old")
    node.leave(begun[0])
    node.step()
    assert not node.granted, "it passed the older one"
    node.leave(begun[1])
    node.steps(3)
    assert node.tokens("old") and node.granted == ["young"]


def test_who_waits_to_be_asked_for_waits_no_longer_than_the_queue_allows(make: Make) -> None:
    node = make(max_batch=1, queue_timeout=30.0)
    clock = ManualClock()
    node.engine._queue._clock = clock
    node.want_each(["r0", "r1", "waits", "leaves"], LONG, 1000)
    node.hand_over()
    assert node.asked == ["r0", "r1"]
    node.leave("leaves")
    assert node.finished("leaves").reason is m.FinishReason.ABORT
    clock.now += 31
    node.step()
    assert node.rejected("waits").kind is m.ErrorKind.QUEUE_TIMEOUT
    node.leave("r0")
    node.steps(2)
    assert node.asked == ["r0", "r1"]


def test_who_waits_to_be_asked_for_is_computed_here_once_nobody_can_be_asked(make: Make) -> None:
    node = make(max_batch=1)
    names = [f"r{number}" for number in range(5)]
    node.want_each(names, LONG, 3)
    assert node.asked == names[:2]
    node.post(m.PeersChanged(False))
    for name in node.asked:
        node.post(m.HandoverFailed(node.transfer_id(name), "gone"))
    node.run()
    ended = [finished.request_id for finished in node.all_said(m.Finished)]
    assert sorted(ended[:2]) == names[:2] and ended[2:] == names[2:]
    assert node.asked == names[:2]
    node.assert_at_rest()


def test_who_is_lost_is_asked_for_again_before_those_that_came_after(make: Make) -> None:
    node = make(max_batch=1)
    node.want_each(["r0", "r1", "r2"], LONG, 3)
    node.post(m.HandoverFailed(node.transfer_id("r1"), "gone", elsewhere=True))
    node.step()
    assert node.asked == ["r0", "r1", "r1"]
