"""The soak: rounds of conversations under faults, each ended at rest.

Owns the order of things. Thread rule: the caller's thread disturbs, a pool's threads converse.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from scripts.command import seed_option
from scripts.soak.clients import converse, expected
from scripts.soak.plan import draw
from scripts.soak.tally import Tally
from scripts.soak.world import World
from tasuki.utils.options import option

_REST_SECONDS = 10.0


@dataclass(frozen=True)
class SoakSettings:
    seconds: float = option(3600.0, "how long new rounds begin")
    seed: int | None = seed_option()
    first_round: int = option(0, "where in the seed's series: one that failed")
    clients: int = option(5, "who converse at once")
    storm_clients: int = option(500, "who ask and leave at once in an abort storm")
    host_cache_gib: float = option(0.25, "below the prefill node's arena; 0: none")
    pause: float = option(0.0, "seconds between rounds, for a host that has other work")
    patience: float = option(
        1.0, "factor on deadlines of what must rest or be answered, for a host that is slow"
    )


def soak(settings: SoakSettings, say: Callable[[str], None]) -> Tally:
    """Whole rounds until `seconds` have passed, or until one saw what must not be. say: one line a
    round."""
    tally, number = Tally(), settings.first_round
    with World(settings.storm_clients, settings.patience, settings.host_cache_gib) as world:
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
        # Before anything is disturbed, since answers are drafted from what they will be.
        undisturbed = pool.map(lambda one: expected(one, world), drawn.conversations)
        asked = [*zip(drawn.conversations, undisturbed, strict=True)]
        talks = [
            pool.submit(converse, one, answers, world, tally, f"round {number}, client {client}")
            for client, (one, answers) in enumerate(asked)
        ]
        for disturbance in drawn.disturbances:
            time.sleep(disturbance.after)
            world.disturb(disturbance.fault, disturbance.lasts)
            tally.disturbed(disturbance.fault.value)
        for talk in talks:
            talk.result()
    try:
        world.mend()
        begun = time.monotonic()
        world.assert_at_rest(_REST_SECONDS * settings.patience)
        tally.rested(time.monotonic() - begun)
    except AssertionError as error:
        tally.trouble("leaks", f"round {number}: {error}")
