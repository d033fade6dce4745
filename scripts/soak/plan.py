"""What one round of the soak asks and breaks, drawn from a seed.

Pure. Invariant: equal seeds and round numbers give equal plans, whatever the rounds before did;
only the moments at which things meet differ from run to run.
"""

import random
from dataclasses import dataclass

from scripts.faulty_pair import Fault

_VOCABULARY = 2000
_PREFIXES = 4
_SALTS = (b"", b"", b"red", b"blue")
_SHARE = {
    Fault.KILL_PREFILL: 3,
    Fault.KILL_DECODE: 2,
    Fault.FREEZE_PREFILL: 2,
    Fault.FREEZE_DECODE: 2,
    Fault.STOP_PREFILL: 1,
    Fault.CUT: 3,
    Fault.BLACK_HOLE: 3,
    Fault.DELAY: 1,
    Fault.THROTTLE: 1,
    Fault.STORM: 2,
}


@dataclass(frozen=True)
class Turn:
    """leave_after: seconds until its client leaves; None: it stays to the end."""

    tokens: tuple[int, ...]
    answer_tokens: int
    leave_after: float | None


@dataclass(frozen=True)
class Conversation:
    """prefix: tokens that other conversations begin with too."""

    salt: bytes
    prefix: tuple[int, ...]
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class Disturbance:
    """after, lasts: seconds since the one before ended, and until this one is undone."""

    fault: Fault
    after: float
    lasts: float


@dataclass(frozen=True)
class Round:
    conversations: tuple[Conversation, ...]
    disturbances: tuple[Disturbance, ...]


def draw(seed: int, number: int, clients: int) -> Round:
    """clients: how many converse at once."""
    rng = random.Random(f"{seed}/{number}")
    prefixes = [_tokens(random.Random(f"{seed}/prefix/{i}"), 700) for i in range(_PREFIXES)]
    return Round(
        tuple(_conversation(rng, prefixes) for _ in range(clients)),
        tuple(_disturbance(rng) for _ in range(rng.randint(1, 3))),
    )


def _conversation(rng: random.Random, prefixes: list[tuple[int, ...]]) -> Conversation:
    prefix = rng.choice(prefixes)[: rng.choice((0, 130, 448, 700))]
    turns = tuple(_turn(rng) for _ in range(rng.randint(1, 4)))
    return Conversation(rng.choice(_SALTS), prefix, turns)


def _turn(rng: random.Random) -> Turn:
    length = rng.choice((rng.randint(1, 100), rng.randint(129, 600), rng.randint(600, 1500)))
    leave = rng.uniform(0.0, 1.5) if rng.random() < 0.25 else None
    return Turn(_tokens(rng, length), rng.randint(1, 60), leave)


def _disturbance(rng: random.Random) -> Disturbance:
    (fault,) = rng.choices(list(_SHARE), list(_SHARE.values()))
    return Disturbance(fault, rng.uniform(0.1, 2.0), rng.choice((0.1, 0.5, 1.5, 4.0)))


def _tokens(rng: random.Random, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(_VOCABULARY) for _ in range(length))
