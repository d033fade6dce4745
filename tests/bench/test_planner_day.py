"""A simulated day: every request ends, nodes cost what they stand, the oracle is cheaper."""

from dataclasses import replace

import numpy as np
import pytest

from tasuki.bench.fleet.planner.day import Day, DaySettings
from tasuki.bench.fleet.planner.main import POLICY, TARGETS, simulated_day
from tasuki.bench.fleet.planner.oracle import OracleDay
from tasuki.bench.fleet.planner.outcome import outcome
from tasuki.bench.fleet.planner.pools import DecodePool, DecodeSpeed, Joining, PrefillPool
from tasuki.bench.fleet.planner.simulated_fleet import NodeTimes, SimulatedFleet
from tasuki.routing.node_load import PrefillSeconds
from tasuki.routing.planner.fleet_plan import Action, ChangeRole, Drain, Place
from tasuki.routing.planner.observation import NodeRole, Observation

SPEED = DecodeSpeed(4.6e-3, 6.5e-5, 3.5e-9, 3.2e6)
SECONDS = PrefillSeconds(0.003, 2.2e-5, 2.4e-10)
HOUR = replace(DaySettings(), seconds=3600.0, rate=6.0, crowds=1, crowd_seconds=(300.0, 400.0))
P, D = NodeRole.PREFILL, NodeRole.DECODE


def nothing(_: Observation) -> tuple[Action, ...]:
    return ()


@pytest.fixture(scope="module")
def day() -> Day:
    return Day.drawn(HOUR, SECONDS, 3)


def test_a_day_is_the_same_for_the_same_seed_and_another_for_another(day: Day) -> None:
    again, other = Day.drawn(HOUR, SECONDS, 3), Day.drawn(HOUR, SECONDS, 4)
    assert (again.came == day.came).all() and (again.prefill == day.prefill).all()
    assert other.crowds != day.crowds
    assert (np.diff(day.came) >= 0).all() and (day.prefill > 0).all() and (day.answer >= 1).all()


def test_every_request_ends_and_nodes_that_stand_all_day_cost_it(day: Day) -> None:
    counts = SimulatedFleet(day, SPEED, NodeTimes(), {P: 12, D: 6}, 1).run(nothing)
    reached = outcome(day, counts, TARGETS)
    assert reached.unended == 0 and reached.in_time > 0.99
    assert reached.node_hours == pytest.approx(18, rel=0.05)
    short = SimulatedFleet(day, SPEED, NodeTimes(), {P: 2, D: 1}, 1).run(nothing)
    worse = outcome(day, short, TARGETS)
    assert worse.unended == 0 and worse.in_time < reached.in_time


def test_nodes_that_change_and_drain_lose_nothing_and_cost_until_they_end(day: Day) -> None:
    todo = {300.0: ChangeRole(P, 3), 900.0: Drain(P), 1200.0: Place(D, 2), 1800.0: ChangeRole(D, 2)}
    seen: dict[float, tuple[int, int]] = {}

    def control(look: Observation) -> tuple[Action, ...]:
        seen[look.at] = look.nodes[P].ready, look.nodes[D].ready
        return (todo[look.at],) if look.at in todo else ()

    counts = SimulatedFleet(day, SPEED, NodeTimes(), {P: 8, D: 8}, 1).run(control)
    assert np.isfinite(counts.first_token).all() and np.isfinite(counts.per_token).all()
    assert seen[300.0] == (8, 8) and seen[305.0] == (8, 5), "an answer ends before its node changes"
    assert seen[600.0] == (11, 5) and seen[905.0] == (10, 5) and seen[1500.0] == (10, 7)
    assert seen[2400.0] == (8, 9)
    assert 15.5 < counts.node_seconds / 3600 < 18.5


def test_a_prefill_node_takes_the_shortest_first_and_each_fourth_time_the_oldest() -> None:
    pool = PrefillPool()
    pool.add(1, 0.0)
    ended = []
    for number, seconds in enumerate((5.0, 4.0, 3.0, 2.0, 1.0)):
        ended += pool.serve(0.1 * number, seconds, number)
    assert pool.backlog(0.5) == pytest.approx(15 - 0.5, abs=0.1)
    ended += pool.advance(100.0)
    assert [number for _, number in ended] == [0, 4, 3, 1, 2]
    assert ended[-1][0] == pytest.approx(15.0)


def test_answers_take_as_long_as_their_batch_makes_them_and_wait_for_memory() -> None:
    pool = DecodePool(DecodeSpeed(0.01, 0.001, 0.0, 250.0))
    pool.add(1, 0.0)
    ended = pool.tick(0.0, 1.0, [Joining(0.0, n, 20, 80) for n in range(3)])
    assert [each.index for each in ended] == [0, 1] and len(pool.waiting) == 1, "no memory"
    for tick in range(1, 5):
        ended += pool.tick(float(tick), 1.0, ())
    assert [each.index for each in ended] == [0, 1, 2]
    assert ended[0].ended == pytest.approx(20 * 0.01) and ended[2].began == 1.0


def test_a_turn_is_a_change_against_the_one_before_it_within_ten_minutes(day: Day) -> None:
    counts = SimulatedFleet(day, SPEED, NodeTimes(), {P: 12, D: 6}, 1).run(nothing)

    def turns(*added: tuple[float, NodeRole, int]) -> tuple[int, int]:
        reached = outcome(day, replace(counts, added=list(added)), TARGETS)
        return reached.turns, reached.at_crowds

    crowd = day.crowds[0]
    assert turns((0.0, P, 3), (600.0, P, -1), (605.0, P, -1), (1205.5, P, 1)) == (1, 0)
    assert turns((0.0, P, -1), (600.5, P, 1), (1201.0, P, -1)) == (0, 0)
    assert turns((0.0, P, -1), (10.0, D, 2), (20.0, P, -1), (30.0, D, -1)) == (1, 0)
    assert turns((crowd - 100.0, D, -1), (crowd + 40.0, D, 4), (crowd + 500.0, D, -1)) == (2, 1)


def test_the_planner_serves_and_the_oracle_is_cheaper(day: Day) -> None:
    _, best = OracleDay(day, SPEED, NodeTimes(), TARGETS).cheapest(lambda line: None)
    planned = simulated_day(day, SPEED, NodeTimes(), POLICY, 1)
    assert planned.unended == 0 and best.in_time >= 0.999
    assert planned.in_time > 0.9 and planned.turns <= 1
    # An hour begins with more nodes than it needs, of which none goes for ten minutes.
    assert best.node_hours < planned.node_hours < 2.5 * best.node_hours
