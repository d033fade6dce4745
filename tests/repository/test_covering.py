"""Tests of cases left to the nightly run by `make test`: the remaining cases still have every value
or pair."""

from itertools import combinations, product

import pytest

from tests.harness.covering import covering_names, every_pair, every_value

SIZES = {"a": 4, "b": 2, "c": 3}
AXES = {axis: {f"{axis}{place}": place for place in range(size)} for axis, size in SIZES.items()}


def parts(cases: list[tuple[str, ...]], strength: int) -> set[tuple[str, ...]]:
    return {part for names in cases for part in combinations(names, strength)}


@pytest.mark.parametrize(("strength", "most"), [(1, 4), (2, 12)])
def test_few_combinations_have_every_value_or_pair(strength: int, most: int) -> None:
    every, chosen = [*product(*AXES.values())], [*covering_names(strength, AXES)]
    assert len(chosen) == len(set(chosen)) <= most
    assert parts(chosen, strength) == parts(every, strength)


@pytest.mark.parametrize(("mark", "quick"), [(every_value, 4), (every_pair, 12)])
def test_every_combination_is_a_case_and_the_others_are_slow(mark: object, quick: int) -> None:
    names, cases = mark(**AXES).args  # type: ignore[operator]
    assert names == ["a", "b", "c"]
    assert [case.values for case in cases] == [*product(range(4), range(2), range(3))]
    assert sum(not case.marks for case in cases) == quick
    assert {mark.name for case in cases for mark in case.marks} == {"slow"}
    assert cases[0].id == "a0-b0-c0"
