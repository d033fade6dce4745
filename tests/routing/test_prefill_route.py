"""Tests of the reason for a choice among prefill nodes, by route and by known facts; tables without
nodes."""

from random import Random

import pytest

from tasuki.routing.node_choice import (
    DRAWN,
    HOLDERS,
    SAMPLED_ABOVE,
    Candidate,
    Reason,
    RouteName,
    by_hash,
    by_transfers,
    choose,
    copy_pays,
    looked_at,
    reason_of,
)
from tasuki.routing.node_load import PrefillSeconds

SECONDS = PrefillSeconds(fixed=0.01, token=1e-3, context=0.0)


@pytest.mark.parametrize(
    ("route", "fresh", "stale"),
    [
        ("auto", Reason.COST, Reason.STALE),
        ("cost", Reason.COST, Reason.COST),
        ("sticky", Reason.STICKY, Reason.STICKY),
        ("fewest-rooms", Reason.FEWEST_TRANSFERS, Reason.FEWEST_TRANSFERS),
        ("fixed", Reason.FEWEST_TRANSFERS, Reason.FEWEST_TRANSFERS),
    ],
)
def test_what_decides(route: RouteName, fresh: Reason, stale: Reason) -> None:
    assert (reason_of(route, True), reason_of(route, False)) == (fresh, stale)


def candidate(node: int, usable: int = 0) -> Candidate:
    return Candidate(node, usable, wait=0.0, exposed=0.0, stored=0.0)


def test_a_choice_names_the_chosen_and_the_best_of_the_others() -> None:
    candidates = [candidate(1), candidate(2, 900), candidate(3, 500)]
    choice = choose(Reason.COST, candidates, 1000, SECONDS, None)
    assert choice.reason is Reason.COST and choice.chosen.candidate.node == 2
    assert choice.second is not None and choice.second.candidate.node == 3
    picked = choose(Reason.STALE, candidates, 1000, SECONDS, 1)
    assert picked.chosen.candidate.node == 1
    assert picked.second is not None and picked.second.candidate.node == 2


@pytest.mark.parametrize("reason", Reason)
def test_where_one_node_is_left_nothing_decides_but_who_named_it(reason: Reason) -> None:
    picked = None if reason is Reason.COST else 1
    only = choose(reason, [candidate(1)], 1000, SECONDS, picked)
    named = reason in (Reason.MOVED, Reason.GATEWAY)
    assert only.reason is (reason if named else Reason.ONLY)
    assert only.chosen.candidate.node == 1 and only.second is None


def test_a_large_fleet_is_looked_at_in_part() -> None:
    few = range(SAMPLED_ABOVE)
    assert list(looked_at(few, [5], Random(0))) == list(few)
    held = list(range(100, 100 + HOLDERS))
    looked = looked_at(range(1000), held, Random(0))
    assert set(held) <= set(looked) and len(looked) <= HOLDERS + DRAWN


def test_a_hash_goes_on_to_another_node_where_one_is_crowded() -> None:
    names = {node: f"10.0.0.{node}:1" for node in range(4)}
    home = by_hash(b"key", names, {})
    assert by_hash(b"key", names, {home: 3}) == home
    assert by_hash(b"key", names, {home: 100, **dict.fromkeys(set(names) - {home}, 1)}) != home
    left = {node: name for node, name in names.items() if node != home}
    keys = [f"key {number}".encode() for number in range(200)]
    before = {key: by_hash(key, names, {}) for key in keys}
    assert all(by_hash(key, left, {}) == node for key, node in before.items() if node != home)


def test_the_fewest_rooms_and_of_equals_the_lowest() -> None:
    assert by_transfers([3, 1, 2], {1: 2, 2: 1, 3: 1}) == 2


@pytest.mark.parametrize(
    ("usable", "held", "pull", "pays"),
    [
        # Without a measurement, computing must take at least twice as many tokens as are pulled.
        (900, 1099, None, False),
        (900, 1100, None, True),
        (1100, 900, None, False),
        # A second of computing compares with 2 x (fixed + tokens x each).
        (0, 1000, (0.1, 0.0004), True),
        (0, 1000, (0.1, 0.0005), False),
        (1000, 2000, (0.0, 0.0004), True),
        (0, 0, (0.0, 0.0), False),
    ],
)
def test_a_copy_pays_where_two_ways_are_quicker_than_computing(
    usable: int, held: int, pull: tuple[float, float] | None, pays: bool
) -> None:
    assert copy_pays(usable, held, SECONDS, pull, at_least=100) is pays
