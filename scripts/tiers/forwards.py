"""Turns of conversations on an engine whose arena is so small that most are loaded, while copies
fail, compared with an engine without a tier."""

import numpy as np

from tests.harness.engines import tiny_engine
from tests.harness.tiers import TieredEngine

from .random_faults import RandomFaults

_AT_ONCE = 6
_BEHIND = 4
"""Tokens of an answer."""


def play(seed: int, loads: int) -> tuple[TieredEngine, RandomFaults, int, int]:
    """The engine at rest, its faults, and how many turns were asked and answered wrongly."""
    random = np.random.default_rng(seed)
    tiered, plain = TieredEngine(slabs=40, host_slabs=400), tiny_engine(slabs=1500)
    faults = tiered.copies.fault = RandomFaults(seed + 1, 60)
    logs = [random.integers(0, 128, 150).tolist() for _ in range(24)]
    turns = wrong = 0
    while sum(tiered.report.loads.values()) < loads:
        asked = {}
        for number in random.choice(len(logs), _AT_ONCE, replace=False).tolist():
            logs[number] += random.integers(0, 128, int(random.integers(5, 40))).tolist()
            if len(logs[number]) > 700:
                logs[number] = logs[number][:150]
            asked[f"{turns}-{number}"] = list(logs[number])
            turns += 1
        for engine in (tiered.lone, plain):
            engine.said.clear()
            engine.ask_all(asked, _BEHIND)
        wrong += sum(tiered.lone.tokens(name) != plain.tokens(name) for name in asked)
    tiered.lone.assert_at_rest()
    return tiered, faults, turns, wrong
