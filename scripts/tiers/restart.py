"""`python -m scripts.tiers.restart`: a node that is killed, and what the next has from the disk.

A process answers conversations and is killed (SIGKILL) when all are on the disk; the next one
starts over the same folder. Prints tokens of the next turns that need not be computed, before and
after, and the seconds from the start; exit status 1 under 95% of before, beyond 30 s, or where a
token of an answer differs from that of a node without a cache.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from tasuki.engine.tiers.tier_prices import CPU_LINK
from tests.harness.engines import alone, prompt, submit, tiny_parts
from tests.harness.tiers import FaultyDisk, TieredEngine

_SLABS = 4000


def _node(folder: Path) -> TieredEngine:
    disk = FaultyDisk(folder, tiny_parts(slabs=2).layout, _SLABS)
    # The model is so small that little would be worth a read from a true disk.
    with mock.patch("tasuki.engine.assembly.engines.DISK_LINK", CPU_LINK):
        return TieredEngine(slabs=60, host_slabs=200, disk=disk.memory())


def _begun(node: TieredEngine, turns: list[list[int]]) -> int:
    """Tokens of these that stand somewhere."""
    found = 0
    for turn in turns:
        match = node.lone.engine._cache.match(submit("x", turn, 1).prompt)
        found += max([match.usable_tokens, *(state.boundary for state in match.stored)])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=40)
    options = parser.parse_args()
    firsts = [prompt(80 + 7 * seed, seed) for seed in range(options.conversations)]
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
        began = time.monotonic()
        node = _node(folder)
        after, seconds = _begun(node, nexts), time.monotonic() - began
        wrong = sum(
            node.lone.ask(f"next-{number}", turn, 3) != alone(turn, 3)
            for number, turn in enumerate(nexts)
        )
        kept, loads = node.reports[1].kept, node.reports[1].loads
        node.lone.assert_at_rest()
        node.close()
    print(
        f"{before} tokens of {options.conversations} next turns stood before, {after} "
        f"({after / before:.1%}) {seconds:.1f} s after the start; {kept}; loads {loads}; "
        f"{wrong} wrong answers"
    )
    return 0 if after >= 0.95 * before and seconds < 30 and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
