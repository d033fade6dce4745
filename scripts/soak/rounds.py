"""The soak: rounds of conversations under faults, each ended at rest.

Owns the order of things. Thread rule: the caller's thread disturbs, a pool's threads converse.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from scripts.soak.clients import converse
from scripts.soak.plan import draw
from scripts.soak.tally import Tally
from scripts.soak.world import World

_REST_SECONDS = 10.0


def soak(
    seconds: float, seed: int, first_round: int, storm_clients: int, say: Callable[[str], None]
) -> Tally:
    """Whole rounds until `seconds` have passed, or until one saw what must not be. say: one line a
    round."""
    tally, number = Tally(), first_round
    begun = time.monotonic()
    with World(storm_clients) as world:
        while tally.good and time.monotonic() - begun < seconds:
            play(world, tally, seed, number)
            say(f"round {number}, {time.monotonic() - begun:.0f} s: {tally}")
            number += 1
    return tally


def play(world: World, tally: Tally, seed: int, number: int) -> None:
    """One round of `draw(seed, number)`."""
    drawn = draw(seed, number)
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
            node.assert_at_rest(_REST_SECONDS)
        tally.rested(time.monotonic() - begun)
    except AssertionError as error:
        tally.trouble("leaks", f"round {number}: {error}")
