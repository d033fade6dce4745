"""A workload of random loads from host memory, with and without a model, while copies fail. Then a
process is killed, and another starts over the same disk folder."""

import logging
import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np

from scripts.chaos.tier_turns import RandomFaults, Turns
from scripts.common.tally import Tally
from tasuki.engine.tiers.tier import CPU_LINK
from tasuki.utils.options import option
from tests.harness.engines import alone, prompt, submit, tiny_engine, tiny_parts
from tests.harness.tiers import FaultyDisk, TieredEngine

_AT_ONCE = 6
_BEHIND = 4
"""Number of tokens of an answer."""
_SLABS = 4000
_LEAST_KEPT = 0.95
_MOST_SECONDS = 30.0


@dataclass(frozen=True)
class TiersSettings:
    fault: str = option("copies", "what fails: copies, or the node (kill)", ("copies", "kill"))
    loads: int = option(10_000, "with forwards")
    copies: int = option(1_000_000, "in ids and bytes alone")
    conversations: int = option(40, "before a kill")
    seed: int = option(1, "of what is asked and what fails")


def run(settings: TiersSettings, say: Callable[[str], None]) -> Tally:
    tally = Tally()
    if settings.fault == "kill":
        _kill(settings.conversations, tally, say)
        return tally
    # Silence the logs of deliberately failed copies.
    logging.disable(logging.ERROR)
    if settings.copies:
        turns = Turns(settings.seed)
        turns.play(settings.copies)
        out = turns.outcome
        say(f"ids and bytes: {[its.loads for its in turns.tier.counters]}")
        _count(tally, "of ids and bytes", out.turns, out.loads, out.wrong)
        tally.faults.update(turns.faults.made)
        turns.tier.close(60.0)
    if settings.loads:
        _forwards(settings.seed, settings.loads, tally)
    return tally


def _count(tally: Tally, what: str, turns: int, loads: int, wrong: int) -> None:
    tally.count(f"turns {what}", turns)
    tally.count(f"loads {what}", loads)
    if wrong:
        tally.trouble("wrong", f"{wrong} turns {what}")


def _forwards(seed: int, loads: int, tally: Tally) -> None:
    """Run conversations on an engine with lower tiers, and compare the answers with an engine's
    without tiers.

    The arena is small, so most turns are loaded from a lower tier. Copies fail meanwhile.
    """
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
    _count(tally, "with forwards", turns, sum(tiered.report.loads.values()), wrong)
    tally.faults.update(faults.made)
    tiered.close()


def _kill(conversations: int, tally: Tally, say: Callable[[str], None]) -> None:
    """Kill a process (SIGKILL) after all its conversations are on the disk, and start another over
    the same folder. A trouble: under 95% of the tokens cached before are cached then, or the
    restart takes 30 s. Another trouble: a token differs from the token of a node without a
    cache."""
    firsts = [prompt(80 + 7 * seed, seed) for seed in range(conversations)]
    nexts = [first + prompt(30, seed=1000) for first in firsts]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            node = _node(folder)
            for number, first in enumerate(firsts):
                node.lone.ask(f"first-{number}", first, 2)
            node.lone.run()
            os.write(theirs, str(_begun(node, nexts)).encode())
            signal.pause()
        os.close(theirs)
        before = int(os.read(ours, 64))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        tally.disturbed("kill")
        began = time.monotonic()
        node = _node(folder)
        after, seconds = _begun(node, nexts), time.monotonic() - began
        wrong = sum(
            node.lone.ask(f"next-{number}", turn, 3) != alone(turn, 3)
            for number, turn in enumerate(nexts)
        )
        say(f"{node.reports[1].kept}; loads {node.reports[1].loads}")
        node.lone.assert_at_rest()
        node.close()
    tally.took("restart", seconds)
    tally.count("tokens stood before", before)
    tally.count("tokens stood after", after)
    if after < _LEAST_KEPT * before or seconds >= _MOST_SECONDS:
        tally.trouble("cold", f"{after / before:.1%} after {seconds:.1f} s")
    _count(tally, "after a kill", conversations, sum(node.reports[1].loads.values()), wrong)


def _node(folder: Path) -> TieredEngine:
    disk = FaultyDisk(folder, tiny_parts(slabs=2).layout, _SLABS)
    # The model is so small that few reads from a real disk would be worth their cost.
    with mock.patch("tasuki.engine.assembly.parts.DISK_LINK", CPU_LINK):
        return TieredEngine(slabs=60, host_slabs=200, disk=disk.memory())


def _begun(node: TieredEngine, turns: list[list[int]]) -> int:
    """Return the number of the turns' prompt tokens stored in any tier. turns: token ids of each
    turn."""
    found = 0
    for turn in turns:
        match = node.lone.engine._cache.match(submit("x", turn, 1).prompt)
        found += max([match.usable_tokens, *(state.boundary for state in match.stored)])
    return found
