"""The soak: rounds of conversations under faults, each ended at rest.

Owns the order of things. Thread rule: the caller's thread disturbs, a pool's threads converse.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from scripts.soak.clients import converse
from scripts.soak.plan import draw
from scripts.soak.tally import Tally
from scripts.soak.world import World

_REST_SECONDS = 10.0


@dataclass(frozen=True)
class SoakSettings:
    """seconds: how long new rounds begin. first_round: where in the seed's series. clients: who
    converse at once; storm_clients: who ask and leave at once in an abort storm. pause: seconds
    between rounds, for a host that has other work. patience: factor on the deadlines of what must
    come to rest or be answered, for a host that is slow."""

    seconds: float
    seed: int
    first_round: int = 0
    clients: int = 5
    storm_clients: int = 500
    pause: float = 0.0
    patience: float = 1.0


def soak(settings: SoakSettings, say: Callable[[str], None]) -> Tally:
    """Whole rounds until `seconds` have passed, or until one saw what must not be. say: one line a
    round."""
    tally, number = Tally(), settings.first_round
    with World(settings.storm_clients, settings.patience) as world:
        # Not before the daemons stand, which on a busy host takes longer than a short soak.
        begun = time.monotonic()
        while tally.good and time.monotonic() - begun < settings.seconds:
            play(world, tally, settings, number)
            say(f"round {number}, {time.monotonic() - begun:.0f} s: {tally}")
            number += 1
            time.sleep(settings.pause)
    return tally


def play(world: World, tally: Tally, settings: SoakSettings, number: int) -> None:
    """One round of the settings' seed."""
    drawn = draw(settings.seed, number, settings.clients)
    with ThreadPoolExecutor(len(drawn.conversations)) as pool:
        talks = [
            pool.submit(converse, conversation, world, tally, f"round {number}, client {client}")
            for client, conversation in enumerate(drawn.conversations)
        ]
        for disturbance in drawn.disturbances:
            time.sleep(disturbance.after)
            world.disturb(disturbance)
            tally.disturbed(disturbance.fault.value)
        for talk in talks:
            talk.result()
    try:
        world.mend()
        begun = time.monotonic()
        for node in (world.decode, world.prefill, world.oracle):
            node.assert_at_rest(_REST_SECONDS * settings.patience)
        tally.rested(time.monotonic() - begun)
    except AssertionError as error:
        tally.trouble("leaks", f"round {number}: {error}")
