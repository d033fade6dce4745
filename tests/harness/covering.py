"""Parametrisation of tests with a full product taking minutes. `make test` runs few combinations;
they cover every value or every pair of values. The nightly run adds the others."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations, product
from typing import Any

import pytest

Axes = Mapping[str, Mapping[str, object]]
"""The axes of a product: for each argument's name, its values by their names in a test's id."""
Names = tuple[str, ...]


def every_value(**axes: Mapping[str, object]) -> pytest.MarkDecorator:
    """Parametrise by the product of independent axes. Each value is in at least one combination
    without the slow mark."""
    return _covering(1, axes)


def every_pair(**axes: Mapping[str, object]) -> pytest.MarkDecorator:
    """Parametrise by the product of axes with dependent pairs. Each pair of values is in at least
    one combination without the slow mark."""
    return _covering(2, axes)


def slow_behind(quick: int, cases: Mapping[str, object]) -> list[Any]:
    """Return the parameters of a parametrised test. All but the first `quick` have the slow mark.

    cases: by name, the value of the one argument or a tuple with one value per argument.
    """
    return [
        pytest.param(
            *(values if isinstance(values, tuple) else (values,)),
            id=name,
            marks=() if place < quick else pytest.mark.slow,
        )
        for place, (name, values) in enumerate(cases.items())
    ]


def _covering(strength: int, axes: Axes) -> pytest.MarkDecorator:
    chosen = {*covering_names(strength, axes)}
    cases = [
        pytest.param(
            *(axes[axis][name] for axis, name in zip(axes, names, strict=True)),
            id="-".join(names),
            marks=() if names in chosen else pytest.mark.slow,
        )
        for names in product(*axes.values())
    ]
    return pytest.mark.parametrize([*axes], cases)


def covering_names(strength: int, axes: Axes) -> Iterator[Names]:
    """Yield the names of few combinations; together they contain each `strength` values of
    different axes. The next combination has the most values not yet covered. Among equals, it has
    the values yielded least."""
    every = [*product(*axes.values())]
    left = {part for names in every for part in _parts(names, strength)}
    yielded: Counter[tuple[int, str]] = Counter()

    def worth(names: Names) -> tuple[int, int]:
        parts = _parts(names, strength)
        return len(left & parts), -sum(yielded[place] for place in enumerate(names))

    while left:
        best = max(every, key=worth)
        left -= _parts(best, strength)
        yielded.update(enumerate(best))
        yield best


def _parts(names: Names, strength: int) -> set[tuple[tuple[int, str], ...]]:
    """Return the combinations of `strength` names, each name with the index of its axis."""
    return {*combinations(enumerate(names), strength)}
