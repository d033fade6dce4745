"""Links lost at random moments under a stream of new requests: each is answered, with the tokens of
an undisturbed process, and nothing is held. The long one is `make lost-links REQUESTS=10000`."""

import random
from itertools import islice

import pytest

from scripts.lost_links.plan import Fault, asks, disturbances
from scripts.lost_links.stream import StreamSettings, play
from scripts.lost_links.tally import HANDED_OVER, LOST, PULLED, Tally
from tests.harness.running_nodes import needs_nixl

REQUESTS = 1000


@pytest.mark.slow
@pytest.mark.timeout(1500)
@needs_nixl
def test_every_request_is_answered_whatever_becomes_of_the_link() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    tally = play(StreamSettings(REQUESTS, seed, patience=6.0), say=print)
    print(tally)
    assert tally.good, (seed, tally.troubles)
    answered = sum(tally.outcomes.values())
    assert answered == sum(1 + ask.returns for ask in asks(seed, REQUESTS))
    # Otherwise nothing was shown: both ways were gone, and links were lost in several.
    assert tally.outcomes[HANDED_OVER] and tally.outcomes[PULLED] and tally.outcomes[LOST]
    assert len(tally.faults) >= 2 and sum(tally.faults.values()) >= 10
    assert sum(tally.lost.values()) >= tally.outcomes[LOST]


def test_the_seed_decides_what_is_asked_and_broken() -> None:
    assert list(asks(7, 50)) == list(asks(7, 50)) != list(asks(8, 50))
    drawn = list(islice(disturbances(7), 40))
    assert drawn == list(islice(disturbances(7), 40)) != list(islice(disturbances(8), 40))
    assert {disturbance.fault for disturbance in drawn} == set(Fault)


def test_no_two_requests_share_a_cache() -> None:
    salts = [ask.salt for ask in asks(7, 500)]
    assert len(set(salts)) == len(salts)


def test_one_trouble_is_enough() -> None:
    tally = Tally()
    tally.outcomes[HANDED_OVER] += 1
    assert tally.good
    tally.troubles.append("request 3: DEADLINE_EXCEEDED")
    assert not tally.good
