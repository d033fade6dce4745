"""Prompts share a chunk. No prompt waits for the length of another one, and none waits for ever."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.engine.scheduling.scheduler import Demand, owed_after, share_chunk
from tasuki.pycache.layout import PAGE_TOKENS

CHUNK = 512


def demand(length: int, caller: str = "", start: int = 0) -> Demand:
    return Demand(caller, start, length, length)


def chunks_until(demands: list[Demand], index: int, budget: int = CHUNK, most: int = 10_000) -> int:
    """Return the number of forwards until the prompt of this index is computed, without new
    prompts."""
    stops = [one.start for one in demands]
    for turn in range(most):
        now = [
            Demand(one.caller, stop, one.length, one.sought)
            for one, stop in zip(demands, stops, strict=True)
            if stop < one.length
        ]
        left = [number for number, one in enumerate(demands) if stops[number] < one.length]
        for number, stop in zip(left, share_chunk(now, budget, turn), strict=True):
            stops[number] = stop
        if stops[index] == demands[index].length:
            return turn + 1
    raise AssertionError("it is never computed")


def test_a_long_prompt_delays_a_short_one_by_a_few_chunks() -> None:
    long, short = demand(100_000), demand(100)
    assert chunks_until([long, short], 1) <= 2
    assert chunks_until([long, *[short] * 4], 4) <= 3


def test_short_prompts_that_keep_coming_do_not_stop_a_long_one() -> None:
    long, turns = demand(10_000), 0
    while long.left:
        stops = share_chunk([long, *[demand(CHUNK)] * 20], CHUNK, turns)
        long, turns = demand(10_000, start=stops[0]), turns + 1
    alone = 10_000 / CHUNK
    assert turns <= 6 * alone


def test_one_prompt_alone_has_the_whole_chunk() -> None:
    assert share_chunk([demand(2000)], CHUNK, 0) == [CHUNK]
    assert share_chunk([], CHUNK, 0) == []


def test_of_a_callers_prompts_the_shortest_has_three_quarters_and_the_next_one_the_rest() -> None:
    assert share_chunk([demand(5000), demand(4000)], CHUNK, 1) == [CHUNK // 4, CHUNK * 3 // 4]


def test_callers_have_equal_parts_however_much_each_asks_for() -> None:
    many = [demand(4000, "greedy") for _ in range(50)]
    one = demand(2048, "modest")
    # A quarter of each chunk would be left to it if prompts were counted, not callers.
    assert chunks_until([*many, one], 50) <= 2 * (2048 / CHUNK) + 1


def test_what_others_wait_for_counts_as_little_left() -> None:
    leader = Demand("", 0, 100_000, sought=2048)
    stops = share_chunk([demand(100_000), leader, demand(4096)], CHUNK, 1)
    assert stops[1] == max(stops)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.integers(1, 5000)), max_size=12
    ),
    st.integers(1, 40),
    st.integers(0, 100),
)
def test_the_whole_budget_is_used_and_chunks_end_on_pages(
    asked: list[tuple[str, int, int]], pages: int, turn: int
) -> None:
    demands = [demand(start * 16 + more, caller, start * 16) for caller, start, more in asked]
    budget = pages * PAGE_TOKENS
    stops = share_chunk(demands, budget, turn)
    taken = sum(stop - one.start for one, stop in zip(demands, stops, strict=True))
    assert taken <= budget
    for one, stop in zip(demands, stops, strict=True):
        assert one.start <= stop <= one.length
        assert stop in (one.start, one.length) or stop % PAGE_TOKENS == 0
        if stop < one.length:
            # The unused rest is smaller than any request could use.
            assert budget - taken < (stop // PAGE_TOKENS + 1) * PAGE_TOKENS - stop
    assert taken or not demands


PAGES = st.sampled_from((1, 2, 3, 5, 16, 80))


@settings(deadline=None, max_examples=60)
@given(st.lists(PAGES, min_size=2, max_size=5), st.sampled_from((128, 256, 512)))
def test_callers_get_what_deficit_round_robin_gives(pages: list[int], budget: int) -> None:
    """A caller with constant demand is never more than two chunks behind another, whatever the
    lengths of their prompts. Shares are whole pages. Tokens left over from whole pages go to any
    prompt short enough and are charged to no caller."""
    lengths = [PAGE_TOKENS * count for count in pages]
    had = [0] * len(lengths)
    owed: dict[str, float] = {}
    fresh = [Demand(str(n), 0, length, length) for n, length in enumerate(lengths)]
    # No caller ever runs out of prompts.
    prompts = [2 + 2 * budget // length for length in lengths]
    running = [fresh[n] for n, count in enumerate(prompts) for _ in range(count)]
    for turn in range(40):
        stops = share_chunk(running, budget, turn, owed=owed)
        owed = owed_after(running, stops, budget, owed)
        after = []
        for one, stop in zip(running, stops, strict=True):
            had[int(one.caller)] += stop - one.start
            went_on = Demand(one.caller, stop, one.length, one.sought)
            after.append(fresh[int(one.caller)] if stop == one.length else went_on)
        running = after
        assert max(had) - min(had) <= 2 * budget, had


def test_who_wants_no_more_is_owed_nothing() -> None:
    now = [demand(64, "modest"), demand(9000, "greedy")]
    stops = share_chunk(now, CHUNK, 1)
    assert stops[0] == 64
    assert owed_after(now, stops, CHUNK, {}) == {"greedy": CHUNK / 2 - stops[1]}


SPEED = 1000.0


def first(demands: list[Demand], turn: int = 1) -> int:
    """Return the index of the prompt to forward if a chunk has space for one."""
    stops = share_chunk(demands, PAGE_TOKENS, turn, SPEED)
    return next(n for n, stop in enumerate(stops) if stop > demands[n].start)


def due(length: int, seconds_left: float) -> Demand:
    return Demand("", 0, length, length, seconds_left)


def test_who_would_be_late_behind_all_others_comes_first_and_the_first_due_of_these() -> None:
    others = [demand(6400), demand(64), demand(64)]
    assert first([*others, due(3200, 5.0)]) == 3, "6.5 s of others are before it"
    assert first([*others, due(3200, 5.0), due(1280, 4.0)]) == 4
    assert first([*others, due(3200, 20.0)]) in (1, 2), "it has time"
    assert first([*others, due(3200, 3.0)]) in (1, 2), "it is too late for it"
    assert first([*others, due(3200, -3.0)]) in (1, 2)
    assert first([*others, due(3200, 5.0)], turn=4) == 0, "the oldest, every fourth time"


def test_while_no_speed_is_known_nobody_hurries() -> None:
    assert share_chunk([due(3200, 5.0), demand(64)], PAGE_TOKENS, 1)[1] == 64


def test_two_callers_who_are_owed_nothing_take_turns_at_what_is_enough_for_one() -> None:
    both = [demand(1000, "ann"), demand(1000, "ben")]
    given = [share_chunk(both, PAGE_TOKENS, turn) for turn in (1, 2, 3)]
    assert given[0] != given[1] == [PAGE_TOKENS, 0] and given[2] == given[0] == [0, PAGE_TOKENS]


@pytest.mark.parametrize("turn", [1, 2, 3])
def test_who_is_owed_something_comes_before_who_is_not(turn: int) -> None:
    both = [demand(1000, "ann"), demand(1000, "ben")]
    assert share_chunk(both, PAGE_TOKENS, turn, owed={"ann": 1.0}) == [PAGE_TOKENS, 0]
    assert share_chunk(both, PAGE_TOKENS, turn, owed={"ann": -1.0}) == [0, PAGE_TOKENS]
