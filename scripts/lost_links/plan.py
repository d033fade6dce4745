"""What is asked and what is broken, drawn from a seed.

Pure. Invariant: equal seeds give equal plans; only the moments at which things meet differ from run
to run.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from scripts.faulty_pair import Fault

CONVERSATIONS = 6
NEW_TOKENS = 4
_VOCABULARY = 2000
_SHORTEST, _LONGEST = 70, 160
FAULTS = (Fault.CUT, Fault.BLACK_HOLE, Fault.FREEZE_PREFILL, Fault.FREEZE_DECODE)


@dataclass(frozen=True)
class Disturbance:
    """after: prompts that are handed over since the one before ended, so that a slow host breaks as
    much and hands over as much as a fast one. pause: seconds after that; lasts: until it is
    undone."""

    fault: Fault
    after: int
    pause: float
    lasts: float


@dataclass(frozen=True)
class Ask:
    """conversation: which of them, under a salt that no other request has. returns: whether its
    client asks a second turn too, which a prefill node fetches the first answer for."""

    number: int
    conversation: int
    returns: bool

    @property
    def salt(self) -> bytes:
        return b"stream %d" % self.number


def asks(seed: int, count: int) -> Iterator[Ask]:
    rng = random.Random(f"{seed}/asks")
    for number in range(count):
        yield Ask(number, rng.randrange(CONVERSATIONS), rng.random() < 0.3)


def disturbances(seed: int) -> Iterator[Disturbance]:
    """Without end. Some are shorter than what counts as silence, so that a link is only nearly
    lost."""
    rng = random.Random(f"{seed}/disturbances")
    while True:
        yield Disturbance(
            rng.choice(FAULTS),
            rng.randrange(1, 20),
            rng.uniform(0.0, 0.3),
            rng.choice((0.05, 0.4, 1.2, 1.6)),
        )


def prompt(seed: int, turn: int) -> tuple[int, ...]:
    """What a client says in a turn: the first one is long, the second one is added to it."""
    rng = random.Random(f"{seed}/prompt/{turn}")
    length = rng.randrange(_SHORTEST, _LONGEST) if turn == 0 else rng.randrange(20, 60)
    return tuple(rng.randrange(_VOCABULARY) for _ in range(length))
