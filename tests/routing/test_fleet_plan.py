"""How many nodes a plan wants: enough, no more than of use, and never to and fro."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.routing.planner.fleet_plan import Action, ChangeRole, Drain, Place, plan
from tasuki.routing.planner.observation import (
    DecodeObserved,
    NodeCount,
    NodeRole,
    Observation,
    PrefillObserved,
    trend_of,
)
from tasuki.routing.planner.policy import NodeBounds, Pace, PlanPolicy, ServiceTargets

P, D = NodeRole.PREFILL, NodeRole.DECODE
EVERY = 5.0
POLICY = PlanPolicy(
    ServiceTargets(2.0, 0.02, 0.95), NodeBounds(most=60), Pace(clear=120.0, settle=300.0)
)
FIXED, EACH = 0.005, 0.0001
"""Fixed seconds of a decode step, and seconds for each token, in these tests."""


def seen(
    at: float,
    work: float,
    tokens: float,
    nodes: dict[NodeRole, NodeCount],
    backlog: float = 0.0,
    mean: float = 0.2,
) -> Observation:
    """Return the observation of a fleet with these nodes. The batch size follows from the
    tokens."""
    rate = tokens / max(1, nodes[D].ready)
    batch = rate * FIXED / max(0.05, 1 - rate * EACH)
    return Observation(
        at,
        nodes,
        PrefillObserved(work, mean, 2 * mean * mean, backlog),
        DecodeObserved(
            tokens, batch * nodes[D].ready, 0.0, FIXED + EACH * batch, batch, held=0.001
        ),
    )


class Fleet:
    """A fleet of nodes that carries out each plan; a placed node is ready two looks later."""

    def __init__(self, prefill: int, decode: int, policy: PlanPolicy = POLICY) -> None:
        self.ready = {P: prefill, D: decode}
        self.coming: list[tuple[float, NodeRole]] = []
        self.policy = policy
        self.history: list[Observation] = []
        self.actions: list[tuple[float, Action]] = []
        self.now = 0.0

    def look(self, work: float, tokens: float, backlog: float = 0.0) -> None:
        self.now += EVERY
        for at, role in [each for each in self.coming if each[0] <= self.now]:
            self.coming.remove((at, role))
            self.ready[role] += 1
        nodes = {
            role: NodeCount(self.ready[role], [r for _, r in self.coming].count(role))
            for role in NodeRole
        }
        self.history.append(seen(self.now, work, tokens, nodes, backlog))
        for action in plan(self.history[-121:], self.policy).actions:
            self.actions.append((self.now, action))
            match action:
                case Place(role, many):
                    self.coming += [(self.now + 2 * EVERY, role)] * many
                case ChangeRole(role, many):
                    self.ready[role.other] -= many
                    self.coming += [(self.now + 2 * EVERY, role)] * many
                case Drain(role):
                    self.ready[role] -= 1
            assert min(self.ready.values()) >= 0

    def looks(self, seconds: float, load: Callable[[float], tuple[float, float]]) -> None:
        for _ in range(round(seconds / EVERY)):
            self.look(*load(self.now))

    def since(self, at: float) -> list[Action]:
        return [action for when, action in self.actions if when > at]


def noisy(values: Sequence[float], number: float) -> float:
    return values[int(number) % len(values)]


@settings(max_examples=8, deadline=None)
@given(
    work=st.floats(0.05, 20),
    tokens=st.floats(1, 50_000),
    prefill=st.integers(1, 25),
    decode=st.integers(1, 25),
    noise=st.lists(st.floats(0.7, 1.3), min_size=7, max_size=97),
)
def test_constant_demand_comes_to_rest_and_is_never_turned_about(
    work: float, tokens: float, prefill: int, decode: int, noise: list[float]
) -> None:
    fleet = Fleet(prefill, decode)

    def load(now: float) -> tuple[float, float]:
        return work * noisy(noise, now / EVERY), tokens * noisy(noise, now / EVERY + 3)

    fleet.looks(2_500, load)
    for role in NodeRole:
        turns = [
            1 if not isinstance(action, Drain) and action.role is role else -1
            for _, action in fleet.actions
            if action.role is role or isinstance(action, ChangeRole)
        ]
        # Missing nodes are added first, surplus nodes go later, and nothing else happens.
        assert turns == sorted(turns, reverse=True), fleet.actions
    at_rest = fleet.now
    fleet.looks(500, load)
    assert not fleet.since(at_rest), "a fleet whose demand does not change stands still"


@settings(max_examples=50, deadline=None)
@given(
    work=st.floats(0, 30),
    tokens=st.floats(0, 100_000),
    factor=st.floats(1, 5),
    shape=st.lists(st.floats(0.3, 2), min_size=3, max_size=40),
    share=st.sampled_from([0.9, 0.95, 0.99]),
)
def test_more_demand_never_asks_for_fewer_nodes(
    work: float, tokens: float, factor: float, shape: list[float], share: float
) -> None:
    policy = replace(POLICY, targets=replace(POLICY.targets, share=share))
    nodes = {P: NodeCount(5), D: NodeCount(5)}
    # The steps of both nodes follow the same line.
    steps = [seen(0.0, 0.0, 20_000.0, nodes).decode]

    def needs(times: float) -> dict[NodeRole, int]:
        history = [
            Observation(
                EVERY * n,
                nodes,
                PrefillObserved(work * each * times, 0.2, 0.08),
                replace(steps[0], tokens=tokens * each * times, running=0.0),
            )
            for n, each in enumerate(shape)
        ]
        made = plan(history, policy).need
        assert all(made.keep[role] >= made.now[role] for role in NodeRole)
        return made.now

    less, more = needs(1.0), needs(factor)
    assert all(more[role] >= less[role] for role in NodeRole)


def test_nothing_is_taken_away_before_a_whole_window_was_observed() -> None:
    """Drain nodes only after a whole observed window. A restarted planner has no history: it may
    add nodes, but takes none away."""
    fleet = Fleet(10, 10)
    fleet.looks(550, lambda now: (0.5, 100.0))
    assert not fleet.actions
    fleet.looks(300, lambda now: (0.5, 100.0))
    assert fleet.actions and all(isinstance(action, Drain) for _, action in fleet.actions)
    added = Fleet(2, 2)
    added.looks(15, lambda now: (8.0, 100.0))
    assert any(isinstance(action, Place) for _, action in added.actions)


def test_one_node_goes_a_cool_down_and_the_rest_would_bear_a_fifth_more() -> None:
    fleet = Fleet(12, 3)
    fleet.looks(3_000, lambda now: (4.0, 5_000.0))
    times = [at for at, action in fleet.actions if isinstance(action, Drain)]
    assert len(times) > 3
    assert all(b - a > POLICY.pace.cool_down for a, b in pairwise(times))
    left = fleet.ready[P]
    more = Fleet(left, fleet.ready[D])
    more.looks(600, lambda now: (4.0 * 1.2, 5_000.0))
    assert not any(isinstance(action, Place) for _, action in more.actions)


def test_a_node_that_was_given_stays_for_as_long_as_is_said() -> None:
    """Keep a new node up to the last look of the settle time, even with a settle time as long as
    the window."""
    policy = replace(POLICY, pace=Pace())
    assert policy.pace.settle == policy.pace.window
    looks = [
        seen(EVERY * n, 0.2, 500.0, {P: NodeCount(3 + (n > 0)), D: NodeCount(1)})
        for n in range(round(policy.pace.settle / EVERY) + 2)
    ]
    assert not plan(looks[:-1], policy).actions
    assert plan(looks, policy).actions == (Drain(P),)


def test_noise_is_no_burst_and_a_crowd_is_one() -> None:
    """Ignore noise. At four requests a second, a quarter minute exceeds its minute by two errors at
    every fortieth look. Each such look would add a node."""
    pace, random = Pace(), np.random.default_rng(1)
    many = round(pace.window / EVERY)
    values = random.poisson(4 * EVERY, 4_000) / EVERY
    times = EVERY * np.arange(many)

    def now(end: int) -> float:
        return trend_of(times, values[end - many : end], pace).now

    level = round(pace.level / EVERY)
    ends = range(many, len(values))
    assert [now(end) for end in ends] == [values[end - level : end].mean() for end in ends]
    values[-3:] = random.poisson(8 * EVERY, 3) / EVERY
    assert now(len(values)) == values[-3:].mean()


def test_a_trend_of_one_look_of_little_and_of_less() -> None:
    pace = Pace()
    one = trend_of(np.array([5.0]), np.array([3.0]), pace)
    assert (one.now, one.soon, one.settled) == (3.0, 3.0, 3.0)
    times = EVERY * np.arange(round(pace.window / EVERY))
    little = trend_of(times, np.full(len(times), 0.1), pace)
    assert little.now == little.soon == pytest.approx(0.1)
    # Demand within `settle` decides if a node may go.
    fewer = np.where(times < times[-1] - pace.level, 4.0, 2.0)
    assert trend_of(times, fewer, pace).settled == pytest.approx(4.0)
    assert NodeCount(2, 1).all == 3


def test_a_role_change_comes_before_a_new_node_where_the_other_role_has_room() -> None:
    fleet = Fleet(3, 8)
    fleet.looks(650, lambda now: (1.5, 20_000.0))
    at = fleet.now
    fleet.looks(60, lambda now: (4.5, 20_000.0))
    first = fleet.since(at)[0]
    assert isinstance(first, ChangeRole) and first.role is P
    # Without spare nodes in the other role, no role changes.
    short = Fleet(3, 3)
    short.looks(650, lambda now: (1.5, 20_000.0))
    at = short.now
    short.looks(60, lambda now: (4.5, 20_000.0))
    assert isinstance(short.since(at)[0], Place)


def test_a_node_that_changed_its_role_does_not_soon_change_back() -> None:
    fleet = Fleet(3, 6, replace(POLICY, bounds=NodeBounds(least=9, most=9)))
    fleet.looks(650, lambda now: (1.5, 20_000.0))
    changed_at = fleet.now
    fleet.looks(60, lambda now: (5.0, 20_000.0))
    assert any(isinstance(action, ChangeRole) for action in fleet.since(changed_at))
    back_at = fleet.now
    fleet.looks(240, lambda now: (0.5, 60_000.0))
    assert not [a for a in fleet.since(back_at) if isinstance(a, ChangeRole) and a.role is D]
    fleet.looks(600, lambda now: (0.5, 60_000.0))
    assert [a for a in fleet.since(back_at) if isinstance(a, ChangeRole) and a.role is D]


def test_a_target_that_no_number_of_nodes_meets_holds_none_for_nothing() -> None:
    policy = replace(POLICY, targets=ServiceTargets(0.01, 0.001, 0.95))
    fleet = Fleet(12, 12, policy)
    fleet.looks(3_000, lambda now: (2.0, 5_000.0))
    need = plan(fleet.history[-121:], policy).need
    assert need.feasible == {P: False, D: False}
    assert fleet.ready[P] <= 5 and fleet.ready[D] <= 5


def test_a_queue_is_seen_though_what_comes_would_fit() -> None:
    """Add a node for a queue: a fleet just large enough for arrivals never works off waiting
    requests."""
    nodes = {P: NodeCount(4), D: NodeCount(2)}
    history = [seen(EVERY * n, 3.0, 1_000.0, nodes, backlog=240.0) for n in range(10)]
    (action,) = plan(history, POLICY).actions
    assert isinstance(action, Place) and action.role is P


def test_what_waits_for_prefill_is_asked_of_decode_nodes_next() -> None:
    nodes = {P: NodeCount(4), D: NodeCount(3)}

    def needs(backlog: float) -> int:
        history = [seen(EVERY * n, 3.0, 20_000.0, nodes, backlog=backlog) for n in range(10)]
        return plan(history, POLICY).need.now[D]

    short, long = needs(3.0), needs(360.0)
    assert short == needs(0.0), "what waits for less than half of the target is late nowhere"
    # Within 120 s, 360 s of prefill must run beside 3 a second; twice as much is passed on.
    twice = [seen(EVERY * n, 3.0, 40_000.0, nodes) for n in range(10)]
    assert short < long <= plan(twice, POLICY).need.now[D]


def test_nodes_that_come_are_not_ordered_again() -> None:
    short = {P: NodeCount(2), D: NodeCount(2)}
    history = [seen(EVERY * n, 6.0, 1_000.0, short) for n in range(20)]
    (placed,) = plan(history, POLICY).actions
    assert isinstance(placed, Place)
    coming = {**short, P: NodeCount(2, placed.nodes)}
    assert not plan([*history[:-1], replace(history[-1], nodes=coming)], POLICY).actions


def test_no_more_than_the_most_are_placed_and_it_is_said_so() -> None:
    policy = replace(POLICY, bounds=NodeBounds(most=5))
    nodes = {P: NodeCount(2), D: NodeCount(2)}
    made = plan([seen(EVERY * n, 30.0, 1_000.0, nodes) for n in range(20)], policy)
    assert made.actions == (Place(P, 1),) and "most" in made.held_back


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ServiceTargets(first_token=0.0),
        lambda: ServiceTargets(per_token=float("nan")),
        lambda: ServiceTargets(share=1.0),
        lambda: NodeBounds(prefill=0),
        lambda: NodeBounds(least=9, most=8),
        lambda: Pace(window=10.0),
        lambda: Pace(room=-1.0),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        wrong()
