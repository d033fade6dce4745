"""All attacks on one pair of daemons, one after another, each judged by itself.

Owns the time: each attack gets an equal share of what is left. Thread rule: the caller's thread.
"""

import random
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scripts.attack.attack import Attack, Attempt
from scripts.attack.tally import Tally
from scripts.attack.world import World
from scripts.common.command import head
from scripts.common.command import row as line


@dataclass(frozen=True)
class Row:
    attack: str
    tries: int
    result: str
    findings: tuple[str, ...]

    @property
    def verdict(self) -> str:
        return "held" if not self.findings else f"{len(self.findings)} findings"


def run(
    attacks: Sequence[Attack], seconds: float, seed: int, say: Callable[[str], None]
) -> list[Row]:
    """seconds: for all of them, once the daemons stand; every attack makes a try, though the time
    be up. say: a line an attack."""
    rows = []
    with World() as world:
        ends = time.monotonic() + seconds
        for number, attack in enumerate(attacks):
            begun = time.monotonic()
            share = max(1.0, (ends - begun) / (len(attacks) - number))
            tally = Tally()
            rng = random.Random(f"{seed}/{attack.name}")
            # What is judged afterwards takes some of the time.
            attempt = Attempt(world, rng, begun + 0.7 * share, tally)
            with world.watched(tally):
                try:
                    attack.try_it(attempt)
                except Exception:
                    tally.finding(f"the attack broke: {traceback.format_exc()[-1500:]}")
            row = Row(attack.name, tally.tries, tally.summary, tuple(tally.findings))
            rows.append(row)
            say(f"{row.attack}: {row.tries} tries, {row.verdict}, {time.monotonic() - begun:.0f} s")
    return rows


def table(rows: Sequence[Row]) -> str:
    lines = [line(each.attack, each.tries, each.result, each.verdict) for each in rows]
    return "\n".join([head("attack", "tries", "result", "verdict"), *lines])
