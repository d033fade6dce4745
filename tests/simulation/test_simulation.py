"""Tests: two simulated nodes keep every promise of docs/faults.md, and the simulation finds the
hand-made defects."""

from collections.abc import Iterator

import pytest

from tests.simulation.defects import DEFECTS, FOUND_BY
from tests.simulation.desks import Outcome
from tests.simulation.history import Tally, play
from tests.simulation.world import Fault, Violation

HISTORIES = 40
"""Number of random histories in the short test, about 2,500 transfers together."""


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Silence the log, because thousands of lost transfers are expected."""
    with caplog.at_level("CRITICAL"):
        yield


@pytest.fixture(scope="module")
def tally() -> Tally:
    found = Tally()
    for seed in range(1, HISTORIES + 1):
        found.add(play(seed))
    return found


def test_every_history_keeps_the_promises_with_every_fault_and_kind(tally: Tally) -> None:
    assert tally.transfers > 2000 and tally.touched > 0.3 * tally.transfers
    assert min(tally.kinds[kind] for kind in ("hand-over", "pull", "fetch", "copy")) > 200
    for fault in Fault:
        assert tally.faults[fault] >= 500 * tally.transfers / 10_000 * 0.5, fault
    assert all(tally.outcomes[outcome] for outcome in Outcome)
    assert tally.outcomes[Outcome.HANDED_OVER] > 0.15 * tally.transfers, "not all is lost"


def test_one_seed_is_one_history() -> None:
    assert play(5) == play(5)


@pytest.mark.slow
def test_long() -> None:
    """Play histories with 10,000 transfers and more."""
    for seed in range(1000, 1200):
        play(seed)


def test_thirty_defects_have_seeds() -> None:
    assert len(FOUND_BY) >= 30 and FOUND_BY.keys() == DEFECTS.keys()


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found(name: str) -> None:
    seed = FOUND_BY[name]
    with DEFECTS[name].applied(), pytest.raises(Violation):
        play(seed)
    play(seed)
