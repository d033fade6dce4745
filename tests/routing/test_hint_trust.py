"""Tests of trust in a node's hints about its cache. Hints count for less while most of the named
cache is missing, and count again once it is there."""

from random import Random

import pytest

from tasuki.routing.prefix_hints import HintTrust


def noted(expected: int, found: int, prompts: int, trust: HintTrust | None = None) -> HintTrust:
    trust = trust or HintTrust()
    for _ in range(prompts):
        trust.note(expected, found)
    return trust


@pytest.mark.parametrize("found", [1000, 700, 501, 5000])
def test_a_node_that_has_most_of_it_is_believed_whole(found: int) -> None:
    assert noted(1000, found, 200).believed(777) == 777


def test_one_that_has_nothing_of_it_is_believed_nothing_after_a_few_prompts() -> None:
    assert noted(1000, 0, 3).believed(777) == 777, "three prompts may be chance"
    assert noted(1000, 0, 8).believed(777) == 0


def test_one_that_has_a_part_is_believed_for_that_part() -> None:
    assert noted(1000, 200, 50).believed(500) == 100


def test_what_was_not_expected_says_nothing() -> None:
    trust = noted(0, 5000, 50)
    assert noted(1000, 0, 8, trust).doubted
    assert noted(0, 9000, 50, trust).doubted, "nor does it mend anything"


def test_it_is_believed_again_once_what_it_says_is_there() -> None:
    trust = noted(1000, 0, 30)
    noted(1000, 1000, 20, trust)
    assert trust.doubted, "not at once: it would be doubted and believed by turns"
    noted(1000, 1000, 60, trust)
    assert trust.believed(777) == 777


def test_figures_that_make_no_sense_do_no_harm() -> None:
    trust = noted(1000, -5, 50)
    assert trust.believed(777) == 0
    chance = Random(1)
    for _ in range(5000):
        trust.note(chance.randrange(-10, 200_000), chance.randrange(-10, 200_000))
        assert 0 <= trust.believed(100_000) <= 100_000
