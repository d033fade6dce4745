"""A prefill engine's report of its remaining work, and its speed in learning it."""

import pytest

from tasuki.engine import messages as m
from tasuki.engine.accounting import Line
from tasuki.engine.routing import ASSUMED, REPORT_SECONDS, PrefillLoad, PrefillSpeed

ONE, TWO = m.TransferId(1), m.TransferId(2)


def learnt(each: float = 1e-3, fixed: float = 0.0, attention: float = 0.0) -> PrefillSpeed:
    speed = PrefillSpeed(attention, 1000)
    for chunk in range(20):
        first = 100 * chunk
        last = first + 50 + 25 * (chunk % 3)
        work = (last - first) + attention * (last * last - first * first) / 2
        speed.add([(first, last)], fixed + each * work)
        speed.add([(last, last)], 9.0)
    return speed


def nothing_known() -> Line | None:
    return None


def test_what_was_measured_comes_out_deep_in_a_context_too() -> None:
    seconds = learnt(each=2e-4, fixed=0.02, attention=1e-4).seconds
    assert seconds.fixed == pytest.approx(0.02, rel=1e-3)
    # A forward's own time is paid once a chunk.
    assert seconds.token == pytest.approx(2e-4 + 0.02 / 1000, rel=1e-3)
    assert seconds.context == pytest.approx(2e-4 * 1e-4, rel=1e-3)


def test_until_something_was_measured_it_is_assumed() -> None:
    speed = PrefillSpeed(0.0, 1000)
    speed.add([], 1.0)
    assert speed.seconds.fixed == ASSUMED.fixed
    assert speed.seconds.token == pytest.approx(ASSUMED.each + ASSUMED.fixed / 1000)


def test_what_is_cached_or_computed_or_over_is_not_left() -> None:
    load = PrefillLoad(learnt())
    load.enter(ONE, cached=500, tokens=1500)
    load.enter(TWO, cached=0, tokens=2000)
    assert load.wait == pytest.approx(1.0 + 2.0, rel=1e-3)
    load.computes(ONE, 1000, 1500)
    assert load.wait == pytest.approx(0.5 + 2.0, rel=1e-3)
    load.computes(ONE, 1500, 1500)
    assert load.wait == pytest.approx(2.0, rel=1e-3)
    load.leave(TWO)
    load.leave(TWO)
    load.computes(TWO, 10, 2000)
    assert load.wait == 0


def test_a_report_comes_now_and_then_at_once_with_a_room_and_at_the_end() -> None:
    load = PrefillLoad(learnt())
    first = load.report(0.0, nothing_known)
    assert first is not None and first.wait_seconds == 0 and first.pull is None
    assert load.report(10.0, nothing_known) is None, "nothing has changed"
    load.enter(ONE, 0, 1000)
    came = load.report(10.0, lambda: Line(0.5, 0.25))
    assert came is not None and came.pull == (0.5, 0.25)
    load.computes(ONE, 100, 1000)
    assert load.report(10.0 + REPORT_SECONDS / 2, nothing_known) is None
    later = load.report(10.0 + REPORT_SECONDS, nothing_known)
    assert later is not None and 0 < later.wait_seconds < came.wait_seconds
    load.leave(ONE)
    ended = load.report(10.0 + REPORT_SECONDS, nothing_known)
    assert ended is not None and ended.wait_seconds == 0
    assert ended.stored_seconds == pytest.approx(0.1, rel=1e-3), "what was computed, not what left"
