"""Short chaos of each workload: its seed decides the played events, and its verdict can fail.
`python -m scripts.chaos` plays longer."""

from collections.abc import Callable
from itertools import islice

import pytest

from scripts.chaos.faults import Fault, UnknownFault, chosen
from scripts.chaos.soak import SHARES, SoakSettings, draw, soak
from scripts.chaos.stream import (
    FAULTS,
    HANDED_OVER,
    LOST,
    OUTCOMES,
    PULLED,
    StreamSettings,
    asks,
    disturbances,
    stream,
)
from scripts.chaos.sweep import SweepSettings, every_point, sample, sweep
from scripts.common.tally import MemoryTrail, Tally
from tasuki.transfer.failpoints import CHUNK_PLACES, Place
from tests.harness.running_nodes import needs_nixl
from tests.harness.waiting import HANG_SECONDS

REQUESTS = 1000
PHASES = 15


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_nixl
def test_a_short_soak_ends_with_no_wrong_token_and_no_leak(fresh_seed: int) -> None:
    settings = SoakSettings(seconds=120.0, seed=fresh_seed, storm_clients=100, patience=6.0)
    tally = soak(settings, say=print)
    assert tally.good, tally.troubles
    assert tally["answers"] >= 10 and tally["tokens"] >= 100 and tally.faults


@pytest.mark.slow
@pytest.mark.timeout(1500)
@needs_nixl
def test_every_request_is_answered_whatever_becomes_of_the_link(fresh_seed: int) -> None:
    """New requests at every moment: each has the tokens of an undisturbed process."""
    tally = stream(StreamSettings(REQUESTS, fresh_seed, patience=6.0), say=print)
    print(tally)
    assert tally.good, tally.troubles
    answered = sum(tally[outcome] for outcome in OUTCOMES)
    assert answered == sum(1 + ask.returns for ask in asks(fresh_seed, REQUESTS))
    # Otherwise nothing was shown: both ways were gone, and links were lost in several.
    assert tally[HANDED_OVER] and tally[PULLED] and tally[LOST]
    assert len(tally.faults) >= 2 and sum(tally.faults.values()) >= 10
    assert sum(tally.lost.values()) >= tally[LOST]


@pytest.mark.slow
@needs_nixl
def test_a_death_in_any_phase_costs_time_only(fresh_seed: int) -> None:
    """SIGKILL at a place of each phase; `scripts.chaos sweep` covers every place and layer
    chunk."""
    tally = Tally()
    deaths = sweep(SweepSettings(sample=1, seed=fresh_seed, patience=HANG_SECONDS), tally)
    assert tally.good, tally.troubles
    assert len(deaths) == tally["deaths"] == PHASES + 1
    # A receiver's death causes no fallback, because no node is left to answer.
    assert any(death.fell_back for death in deaths if death.point.sends)
    assert not any(death.fell_back for death in deaths if not death.point.sends)


@pytest.mark.parametrize(
    "drawn",
    [
        lambda seed: [draw(SoakSettings(seed=seed), number) for number in (3, 4)],
        lambda seed: list(asks(seed, 50)),
        lambda seed: list(islice(disturbances(StreamSettings(seed=seed)), 40)),
        lambda seed: sample(every_point(16), seed=seed, more=5),
    ],
    ids=["soak", "requests", "disturbances", "sweep"],
)
def test_the_seed_decides_what_is_played(drawn: Callable[[int], list[object]]) -> None:
    assert drawn(7) == drawn(7) != drawn(8)
    assert drawn(7)[0] != drawn(7)[1]


def test_a_sweep_is_of_every_place_and_window_and_a_sample_of_every_phase() -> None:
    points = every_point(16)
    assert len(set(points)) == len(points) == len(Place) + 15 * len(CHUNK_PLACES)
    assert {point.place for point in points} == set(Place)
    chosen_points = sample(points, seed=3, more=5)
    assert len(set(chosen_points)) == PHASES + 5
    assert {point.sends for point in chosen_points} == {True, False}


def test_links_are_disturbed_in_every_way_and_no_two_requests_share_a_cache() -> None:
    played = islice(disturbances(StreamSettings(seed=7)), 40)
    assert {disturbance.fault for _, disturbance in played} == set(FAULTS)
    salts = [ask.salt for ask in asks(7, 500)]
    assert len(set(salts)) == len(salts)


def test_faults_are_named_by_their_beginnings() -> None:
    known = [*SHARES]
    assert chosen("", known) == tuple(known)
    assert chosen("kill,cut", known) == (Fault.KILL_PREFILL, Fault.KILL_DECODE, Fault.CUT)
    drawn = [draw(SoakSettings(seed=7, fault="kill-p"), number) for number in range(20)]
    disturbed = [each for one in drawn for each in one.disturbances]
    assert {each.fault for each in disturbed} == {Fault.KILL_PREFILL}
    with pytest.raises(UnknownFault, match="'melt' is none of kill-prefill"):
        chosen("melt", known)


def test_a_wrong_token_is_a_trouble_unless_the_oracle_nearly_tied() -> None:
    tally = Tally()
    tally.judge((5, 6), (5, 6, 7), (1.0, 1.0, 1.0), "left early")
    tally.judge((5, 9, 9), (5, 6, 7), (1.0, 1e-4, 1.0), "a near tie, then another text")
    assert tally.good and tally["tokens"] == 3 and tally["near ties"] == 1
    tally.judge((5, 9), (5, 6, 7), (1.0, 1.0, 1.0), "wrong")
    assert not tally.good and tally["wrong"] == 1
    one_more = Tally()
    one_more.judge((5, 6), (5,), (1.0,), "one more")
    assert not one_more.good


def test_what_grows_is_not_flat_and_what_is_lost_is_not_good() -> None:
    flat, growing = MemoryTrail(), MemoryTrail()
    for step in range(100):
        flat.add(400 + min(step, 30))
        growing.add(400 + step)
    assert flat.is_flat() and flat.growth == 0
    assert not growing.is_flat() and growing.growth == 40
    tally = Tally()
    tally.count("turns")
    assert tally.good
    tally.trouble("lost", "UNAVAILABLE")
    assert not tally.good and tally["lost"] == 1
