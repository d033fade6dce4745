"""A short soak in CI, and that its verdict can fail. `python -m scripts.chaos soak` is longer."""

import pytest

from scripts.chaos.faults import Fault, UnknownFault, chosen
from scripts.chaos.soak import SHARES, SoakSettings, draw, soak
from scripts.common.tally import Tally
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
    seven, eight = SoakSettings(seed=7), SoakSettings(seed=8)
    assert draw(seven, 3) == draw(SoakSettings(seed=7), 3)
    assert draw(seven, 3) != draw(seven, 4) and draw(seven, 3) != draw(eight, 3)


def test_faults_are_named_by_their_beginnings() -> None:
    known = [*SHARES]
    assert chosen("", known) == tuple(known)
    assert chosen("kill,cut", known) == (Fault.KILL_PREFILL, Fault.KILL_DECODE, Fault.CUT)
    drawn = [draw(SoakSettings(seed=7, fault="kill-p"), number) for number in range(20)]
    disturbances = [each for one in drawn for each in one.disturbances]
    assert {each.fault for each in disturbances} == {Fault.KILL_PREFILL}
    with pytest.raises(UnknownFault, match="'melt' is none of kill-prefill"):
        chosen("melt", known)


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
