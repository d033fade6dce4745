"""Turns of sessions whose clients leave at once, at a node of its own with front workers."""

import tempfile
from pathlib import Path

from scripts.attack.attack import Attempt
from scripts.turns_left import Settings, run

_TURNS = 300


def left_turns(attempt: Attempt) -> None:
    """A turn that is left is over, whatever came first at the node's registry: its begin, its end,
    or both at once."""
    for workers, _ in zip((2, 3), attempt.rounds(), strict=False):
        settings = Settings(workers, _TURNS, seed=attempt.rng.randrange(2**31))
        with tempfile.TemporaryDirectory() as folder:
            tally = run(settings, Path(folder))
        attempt.tally.note(f"{workers} workers, {_TURNS} turns")
        for trouble in tally.troubles:
            attempt.tally.finding(f"{workers} workers: {trouble}")
