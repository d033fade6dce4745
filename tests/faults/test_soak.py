"""A short soak in CI, and that its verdict can fail. The long one is `make soak SECONDS=3600`."""

import pytest

from scripts.soak.plan import draw
from scripts.soak.rounds import SoakSettings, soak
from scripts.soak.tally import Tally
from tests.harness.running_nodes import needs_nixl


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_nixl
def test_a_short_soak_ends_with_no_wrong_token_and_no_leak(fresh_seed: int) -> None:
    settings = SoakSettings(seconds=120.0, seed=fresh_seed, storm_clients=100, patience=6.0)
    tally = soak(settings, say=print)
    assert tally.good, tally.troubles
    assert tally["answers"] >= 10 and tally["tokens"] >= 100 and tally.faults


def test_the_seed_decides_what_is_asked_and_broken() -> None:
    assert draw(7, 3, 5) == draw(7, 3, 5)
    assert draw(7, 3, 5) != draw(7, 4, 5) and draw(7, 3, 5) != draw(8, 3, 5)


def test_a_wrong_token_is_a_trouble_unless_the_oracle_nearly_tied() -> None:
    tally = Tally()
    tally.judge((5, 6), (5, 6, 7), (1.0, 1.0, 1.0), "left early")
    tally.judge((5, 9, 9), (5, 6, 7), (1.0, 1e-4, 1.0), "a near tie, then another text")
    assert tally.good and tally["tokens"] == 3 and tally["near ties"] == 1
    tally.judge((5, 9), (5, 6, 7), (1.0, 1.0, 1.0), "wrong")
    assert not tally.good and tally["wrong"] == 1


def test_a_token_too_many_is_a_trouble() -> None:
    tally = Tally()
    tally.judge((5, 6), (5,), (1.0,), "one more")
    assert not tally.good
