"""Tests of a worker's asks at the registry, in every order of their messages and awaited events.

A schedule is an order of one call's steps. Before each step, a number of event loop turns passes:
none means the same read, RESTED means all pending work. All schedules are played; none is sampled.
After each of them the seat, the engine's client and the sessions hold nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice, permutations, product

import pytest

from tests.harness.played_asks import BEGUN, ENDED, RESTED, Played, turns

AT_ONCE = 32
Step = Callable[[Played], None]
Schedule = tuple[tuple[Step, int], ...]


def schedules(steps: Sequence[Step], gaps: Sequence[int]) -> Iterator[Schedule]:
    """Yield every order of the steps, with every choice of turns before each but the first. A
    leaving worker leaves after the first step of its call."""
    for order in permutations(steps):
        places = {step: place for place, step in enumerate(order)}
        if places.get(Played.worker_leaves, len(order)) < places[steps[0]]:
            continue
        for before in product(gaps, repeat=len(steps) - 1):
            yield tuple(zip(order, (0, *before), strict=True))


async def play(schedule: Schedule, make: Callable[[], Awaitable["Played"]]) -> None:
    played = await make()
    try:
        for step, before in schedule:
            await turns(before)
            step(played)
        await played.settle()
        played.check()
    except Exception as error:
        raise AssertionError(words(schedule)) from error


def words(schedule: Schedule) -> str:
    return ", ".join(f"{before} turns, {step.__name__}" for step, before in schedule)


def play_all(
    all_of_them: Iterable[Schedule], make: Callable[[], Awaitable[Played]] = Played.of_one
) -> int:
    """Play each schedule and return their number. Many share one loop, since a loop's turns cost
    more than theirs."""

    async def every() -> int:
        count = 0
        rest = iter(all_of_them)
        while batch := [*islice(rest, AT_ONCE)]:
            await asyncio.gather(*(play(schedule, make) for schedule in batch))
            count += len(batch)
        return count

    return asyncio.run(every())


GRANTS = [Played.grant, Played.refuse]
EACH = (0, 1, 2, RESTED)
FEW = (0, 1, RESTED)
TWO = (0, RESTED)


@pytest.mark.parametrize("grant", GRANTS)
def test_reservation_in_every_schedule_of_its_messages_holds_nothing_after(grant: Step) -> None:
    steps = [Played.reserve, Played.release, grant]
    assert play_all(schedules(steps, EACH)) == 6 * 16
    steps.append(Played.worker_leaves)
    assert play_all(schedules(steps, FEW)) == 12 * 27


@pytest.mark.parametrize("grant", GRANTS)
def test_turn_in_every_schedule_of_its_messages_holds_nothing_after(grant: Step) -> None:
    steps = [Played.begin_turn, Played.end_turn, grant]

    assert play_all(schedules(steps, EACH), Played.of_session) == 6 * 16
    steps.append(Played.worker_leaves)
    assert play_all(schedules(steps, FEW), Played.of_session) == 12 * 27


@pytest.mark.parametrize("end", [Played.end_first, Played.leave_sent, Played.leave_unsent])
@pytest.mark.parametrize("grant", GRANTS)
def test_call_in_every_schedule_of_its_messages_holds_nothing_after(grant: Step, end: Step) -> None:
    steps = [Played.enter, grant, Played.engine_ends_first, end]
    assert play_all(schedules(steps, FEW)) == 24 * 27
    steps.append(Played.worker_leaves)
    assert play_all(schedules(steps, TWO)) == 60 * 16


SECOND = {
    "both end": [Played.end_first, Played.end_second],
    "one ends, one is left": [Played.end_first, Played.leave_sent],
}


@pytest.mark.parametrize("ends", SECOND.values(), ids=SECOND)
def test_call_of_two_answers_in_every_schedule_holds_nothing_after(ends: Sequence[Step]) -> None:
    begun = ((Played.enter, 0), (Played.grant, 1))
    rest = schedules([Played.engine_ends_first, Played.engine_ends_second, *ends], FEW)
    assert play_all([(*begun, *schedule) for schedule in rest], Played.of_two) == 24 * 27


def test_messages_of_one_call_twice_answer_every_ask_and_hold_nothing_after() -> None:
    ends = [Played.end_first, Played.end_second, Played.leave_sent]

    def all_of_them() -> Iterator[Schedule]:
        for order in permutations([Played.enter, Played.grant, *ends]):
            for before in product(TWO, repeat=4):
                yield tuple(zip(order, (0, *before), strict=True))

    # With one answer, the second End, and a Leave after the first, are superfluous.
    assert play_all(all_of_them()) == 120 * 16


async def test_turn_that_ends_before_its_grant_frees_its_session_at_once() -> None:
    played = await Played.of_session()
    played.begin_turn()
    await turns(RESTED)
    assert played.session.busy, "the turn waits for its cursor"
    played.end_turn()
    await turns(RESTED)
    assert not played.session.busy and played.replies == {BEGUN: 1, ENDED: 1}
    await played.settle()
    played.check()


async def test_reservation_that_is_released_before_its_grant_still_counts_as_a_request() -> None:
    played = Played()
    played.reserve()
    played.release()
    await played.settle()
    assert played.client.let_in == 1, "a caller who leaves at once asks for free"
    played.check()
