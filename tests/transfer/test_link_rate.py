"""What a connection's flushes teach: latency and speed told apart, and what is still in flight."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tasuki.transfer.sending.link_cost import LinkRate


def feed(link: LinkRate, sizes: list[int], window_seconds: float, byte_seconds: float) -> None:
    """Windows one after another over a link of that cost."""
    now = 0.0
    for size in sizes:
        link.posted(size)
        begun, now = now, now + window_seconds + size * byte_seconds
        link.flushed(size, begun, now)


@given(
    window_seconds=st.floats(0, 0.01),
    byte_seconds=st.floats(1e-11, 1e-5),
    small=st.integers(1, 1 << 20),
    factor=st.integers(2, 50),
)
def test_latency_and_speed_are_told_apart(
    window_seconds: float, byte_seconds: float, small: int, factor: int
) -> None:
    link = LinkRate()
    assert link.cost is None and link.seconds_for(1) is None
    feed(link, [small, small * factor] * 20, window_seconds, byte_seconds)
    assert link.cost is not None and link.cost.spread
    whole = window_seconds + small * factor * byte_seconds
    assert link.seconds_for(small * factor) == pytest.approx(whole, rel=0.05)
    assert link.cost.window_seconds >= 0 and link.cost.byte_seconds > 0
    assert link.in_flight_bytes == 0


def test_windows_of_one_size_tell_their_mean_alone() -> None:
    link = LinkRate()
    feed(link, [1000] * 10, 0.5, 0.001)
    assert link.cost is not None and not link.cost.spread
    assert link.cost.byte_seconds == pytest.approx(1.5 / 1000)


def test_a_window_in_a_queue_pays_from_the_flush_before_it() -> None:
    link = LinkRate()
    for _ in range(4):
        link.posted(100)
    for now in (1.0, 2.0, 3.0, 4.0):
        link.flushed(100, 0.0, now)
    assert link.seconds_for(100) == pytest.approx(1.0)


def test_a_link_that_became_slow_is_believed_within_some_windows() -> None:
    link = LinkRate()
    feed(link, [1000, 2000] * 20, 0.0, 1e-6)
    feed(link, [1000, 2000] * 40, 0.0, 1e-3)
    assert link.cost is not None and link.cost.byte_seconds > 0.8e-3


def test_what_failed_is_not_in_flight_and_teaches_nothing() -> None:
    link = LinkRate()
    link.posted(10)
    link.posted(20)
    link.gone(20)
    assert link.in_flight_bytes == 10 and link.cost is None
    link.flushed(10, 0.0, 0.0)
    assert link.in_flight_bytes == 0 and link.cost is None
