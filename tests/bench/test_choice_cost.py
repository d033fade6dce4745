"""Tests of a choice's cost: it does not grow with the fleet, and the index keeps its bound."""

import pytest

from tasuki.bench.route import measure

BYTES_A_PREFIX = 150


@pytest.mark.slow
def test_a_choice_among_many_costs_what_one_among_few_does() -> None:
    few = measure(nodes=100, prefixes=200, tokens=20_000, choices=200)
    many = measure(nodes=1000, prefixes=200, tokens=20_000, choices=200)
    assert many["prefixes"] >= 200_000
    # Both weigh 64 nodes; weighing all of a thousand would cost ten times as much.
    assert many["choice_p50_ms"] < 3 * few["choice_p50_ms"]
    assert many["index_bytes"] < BYTES_A_PREFIX * many["prefixes"]
