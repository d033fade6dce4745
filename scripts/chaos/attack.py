"""The attacks of scripts/attack as a chaos workload. A fault named on the command line selects
attacks by a part of their names."""

import random
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scripts.attack.attack import Attack, Attempt
from scripts.attack.catalogue import ATTACKS
from scripts.attack.tally import Tally as AttackTally
from scripts.attack.world import World
from scripts.common.command import head, seed_option
from scripts.common.command import row as line
from scripts.common.tally import Tally
from tasuki.utils.options import option

_EACH = 20.0
"""Seconds of an attack by default."""


@dataclass(frozen=True)
class Row:
    attack: str
    tries: int
    result: str
    findings: tuple[str, ...]

    @property
    def verdict(self) -> str:
        return "held" if not self.findings else f"{len(self.findings)} findings"


def campaign(
    attacks: Sequence[Attack], seconds: float, seed: int, say: Callable[[str], None]
) -> list[Row]:
    """Run the attacks on one prefill and decode node, one after another, each judged by itself. An
    attack gets an equal share of the remaining time.

    seconds: time for all attacks, once the daemons are ready. Every attack makes a try, even after
    the time is up. say: receives one line for each attack.
    """
    rows = []
    with World() as world:
        ends = time.monotonic() + seconds
        for number, attack in enumerate(attacks):
            begun = time.monotonic()
            share = max(1.0, (ends - begun) / (len(attacks) - number))
            tally = AttackTally()
            rng = random.Random(f"{seed}/{attack.name}")
            # The judgement afterwards takes some of the time.
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


@dataclass(frozen=True)
class AttackSettings:
    seconds: float | None = option(None, f"for all attacks together; none: {_EACH:g} for each")
    seed: int | None = seed_option()
    fault: str = option("", "attacks whose names hold this, as rogue or bombs; none: all")


def run(settings: AttackSettings, say: Callable[[str], None]) -> Tally:
    tally = Tally()
    attacks = [attack for attack in ATTACKS if settings.fault in attack.name]
    assert settings.seed is not None
    seconds = _EACH * len(attacks) if settings.seconds is None else settings.seconds
    rows = campaign(attacks, seconds, settings.seed, say)
    say(table(rows))
    for each in rows:
        tally.count("tries", each.tries)
        tally.disturbed(each.attack)
        for finding in each.findings:
            tally.trouble("finding", f"{each.attack}: {finding}")
    return tally
