"""A sample of the SIGKILL sweep, and that the sweep names every place and window. The whole one is
`python -m scripts.chaos sweep`."""

import pytest

from scripts.chaos.sweep import SweepSettings, every_point, sample, sweep
from scripts.common.tally import Tally
from tasuki.transfer.failpoints import WINDOW_PLACES, Place
from tests.harness.running_nodes import needs_nixl
from tests.harness.waiting import HANG_SECONDS

PHASES = 13


@pytest.mark.slow
@needs_nixl
def test_a_death_in_any_phase_costs_time_only(fresh_seed: int) -> None:
    tally = Tally()
    deaths = sweep(SweepSettings(sample=1, seed=fresh_seed, patience=HANG_SECONDS), tally)
    assert tally.good, tally.troubles
    assert len(deaths) == tally["deaths"] == PHASES + 1
    # A receiver's death is no fallback: there is nobody left to answer.
    assert any(death.fell_back for death in deaths if death.point.sends)
    assert not any(death.fell_back for death in deaths if not death.point.sends)


def test_a_sweep_is_of_every_place_and_every_window() -> None:
    points = every_point(16)
    assert len(set(points)) == len(points) == len(Place) + 15 * len(WINDOW_PLACES)
    assert {point.place for point in points} == set(Place)


def test_a_sample_has_every_phase_and_its_seed_decides_the_rest() -> None:
    points = every_point(16)
    chosen = sample(points, seed=3, more=5)
    assert chosen == sample(points, seed=3, more=5) != sample(points, seed=4, more=5)
    assert len(set(chosen)) == PHASES + 5
    assert {point.sends for point in chosen} == {True, False}
