"""The attacks of scripts/attack as a workload: a fault is a part of an attack's name."""

from collections.abc import Callable
from dataclasses import dataclass

from scripts.attack.campaign import run as attacked
from scripts.attack.campaign import table
from scripts.attack.catalogue import ATTACKS
from scripts.common.command import seed_option
from scripts.common.tally import Tally
from tasuki.utils.options import option


@dataclass(frozen=True)
class AttackSettings:
    seconds: float = option(600.0, "for all attacks together")
    seed: int | None = seed_option()
    fault: str = option("", "attacks whose names hold this, as rogue or bombs; none: all")


def run(settings: AttackSettings, say: Callable[[str], None]) -> Tally:
    tally = Tally()
    attacks = [attack for attack in ATTACKS if settings.fault in attack.name]
    assert settings.seed is not None
    rows = attacked(attacks, settings.seconds, settings.seed, say)
    say(table(rows))
    for each in rows:
        tally.count("tries", each.tries)
        tally.disturbed(each.attack)
        for finding in each.findings:
            tally.trouble("finding", f"{each.attack}: {finding}")
    return tally
