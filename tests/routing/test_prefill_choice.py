"""The choice of a prefill node, as a table of small fleets."""

import math
from dataclasses import replace

import pytest

from tasuki.routing.node_choice import REUSE, TIE_SECONDS, Candidate, bids, rendezvous, should_move
from tasuki.routing.node_load import STALE_SECONDS, NodeLoad, PrefillSeconds

SECONDS = PrefillSeconds(fixed=0.01, token=1e-5, context=1e-10)
PROMPT = 100_000
EMPTY = Candidate(node=0, usable=0, wait=0.0, exposed=0.0, stored=0.0)


def chosen(*candidates: Candidate) -> int:
    numbered = [replace(each, node=node) for node, each in enumerate(candidates)]
    return bids(numbered, PROMPT, SECONDS)[0].candidate.node


def test_a_prefill_costs_more_the_deeper_its_tokens_stand() -> None:
    first, last = SECONDS.between(0, 1000), SECONDS.between(99_000, 100_000)
    assert last - first == pytest.approx(1e-10 * 1000 * 99_000)
    assert SECONDS.between(0, 400) + SECONDS.between(400, 1000) == pytest.approx(0.01 + first)


@pytest.mark.parametrize(
    ("candidates", "wanted"),
    [
        ((EMPTY, replace(EMPTY, usable=90_000)), 1),
        ((replace(EMPTY, wait=1.0), EMPTY), 1),
        # Recomputed tokens cost every later turn: waiting in a short queue pays,
        ((EMPTY, replace(EMPTY, usable=90_000, wait=5.0)), 1),
        # and a long one is not.
        ((EMPTY, replace(EMPTY, usable=90_000, wait=60.0)), 0),
        ((replace(EMPTY, exposed=0.1), replace(EMPTY, wait=0.1)), 1),
        # A small part of a prompt does not bind it to the node that stored most,
        ((replace(EMPTY, stored=10.0, usable=5_000), replace(EMPTY, stored=1.0)), 1),
        # most of it does.
        ((replace(EMPTY, stored=10.0, usable=95_000), replace(EMPTY, stored=1.0)), 0),
    ],
)
def test_the_cheapest_is_chosen(candidates: tuple[Candidate, ...], wanted: int) -> None:
    assert chosen(*candidates) == wanted


def test_a_prompt_goes_where_one_that_begins_alike_was_sent() -> None:
    alike = replace(EMPTY, node=1, sent=60_000, wait=2.0)
    assert chosen(EMPTY, alike) == 1
    assert chosen(EMPTY, replace(alike, wait=60.0)) == 0
    # It is computed there all the same,
    first, second = bids([EMPTY, alike], PROMPT, SECONDS)
    assert first.prefill == second.prefill
    # and tokens held with their state count more.
    assert chosen(replace(EMPTY, usable=60_000), replace(alike, wait=0.0)) == 0


def test_of_equal_costs_the_one_that_stored_least_is_chosen() -> None:
    idle = [replace(EMPTY, node=node, usable=PROMPT - 1) for node in range(3)]
    stored = [replace(idle[0], stored=2.0), replace(idle[1], stored=1.0), idle[2]]
    assert bids(stored, PROMPT, SECONDS)[0].candidate.node == 2
    late = [*stored[:2], replace(stored[2], wait=2 * TIE_SECONDS)]
    assert bids(late, PROMPT, SECONDS)[0].candidate.node == 1


def test_bids_are_in_the_order_of_their_costs_behind_the_first() -> None:
    fleet = [Candidate(node, node * 9_000, node * 0.3, 0.0, 0.0) for node in range(10)]
    costs = [bid.cost for bid in bids(fleet, PROMPT, SECONDS)]
    assert costs[1:] == sorted(costs[1:])
    assert costs[0] <= costs[1] + TIE_SECONDS
    assert REUSE > 1


def test_a_room_moves_where_the_node_is_busier_than_the_second_choice_costs() -> None:
    first, second = bids([EMPTY, replace(EMPTY, node=1, wait=1.0)], PROMPT, SECONDS)
    assert first.candidate.node == 0
    assert not should_move(first, second, present_wait=0.9)
    assert should_move(first, second, present_wait=1.1)


def test_what_was_sent_counts_until_a_report_that_is_younger() -> None:
    load = NodeLoad()
    load.report(2.0, at=10.0)
    assert load.wait(10.5) == pytest.approx(1.5)
    load.send(3.0, at=10.5)
    assert load.wait(10.5) == pytest.approx(4.5)
    load.report(1.0, at=10.4)
    assert load.wait(10.5) == pytest.approx(3.9)
    load.report(4.0, at=11.0)
    assert load.wait(11.0) == pytest.approx(4.0)
    assert load.wait(20.0) == 0.0


def test_a_report_counts_for_as_long_as_it_is_fresh() -> None:
    load = NodeLoad()
    load.report(40.0, at=100.0)
    assert load.wait(100.0 + STALE_SECONDS) == pytest.approx(10.0)
    assert load.wait(100.1 + STALE_SECONDS) == 0.0


def test_without_reports_what_was_sent_here_counts_alone() -> None:
    load = NodeLoad()
    load.report(100.0, at=0.0)
    load.send(30.0, at=1.0)
    stale = 1.0 + STALE_SECONDS
    assert load.wait(stale) == pytest.approx(31.0 - stale)
    assert load.wait(32.0) == 0.0


def test_what_others_had_stored_is_reported() -> None:
    load = NodeLoad()
    load.report(0.0, at=0.0, stored=8.0)
    load.send(2.0, at=1.0)
    assert load.stored(1.0) == pytest.approx(8.0 * math.exp(-1 / 600) + 2.0)
    load.report(0.0, at=0.5, stored=9.0)
    assert load.stored(1.0) == pytest.approx(11.0, rel=1e-2)
    load.report(0.0, at=2.0)
    assert load.stored(2.0) == pytest.approx(11.0, rel=1e-2)


def test_what_was_stored_fades() -> None:
    load = NodeLoad()
    load.send(6.0, at=0.0)
    assert load.stored(0.0) == pytest.approx(6.0)
    load.send(6.0, at=600.0)
    assert load.stored(600.0) == pytest.approx(6.0 + 6.0 / 2.718281828)


def test_a_node_that_goes_moves_its_own_keys_alone() -> None:
    nodes = [f"10.0.0.{n}:7000" for n in range(10)]
    keys = [n.to_bytes(4, "big") for n in range(2000)]
    before = {key: rendezvous(key, nodes) for key in keys}
    after = {key: rendezvous(key, nodes[1:]) for key in keys}
    moved = [key for key in keys if before[key] != after[key]]
    assert {before[key] for key in moved} == {nodes[0]}
    assert 120 < len(moved) < 280
