"""What the commands of this folder share: settings with a drawn seed, lines that show at once, a
verdict."""

import random
import sys
from dataclasses import replace
from typing import Any, TypeVar

from scripts.tally import Tally
from tasuki.utils.flags import parse_config
from tasuki.utils.options import option

Settings = TypeVar("Settings", bound=Any)


def seed_option() -> Any:
    return option(None, "drawn and printed if not given")


def settings_of(module: str, about: str, kind: type[Settings]) -> Settings:
    """From the command line; a `seed` that it does not give is drawn."""
    settings = parse_config(f"python -m {module}", about, sys.argv[1:], kind)
    if settings.seed is None:
        return replace(settings, seed=random.SystemRandom().randrange(2**32))
    return settings


def show(line: str) -> None:
    print(line, flush=True)


def concluded(name: str, seed: int, tally: Tally) -> int:
    """Shows the troubles and the verdict; the exit status."""
    for trouble in tally.troubles:
        print(trouble)
    show(f"{name}: {'PASSED' if tally.good else 'FAILED'}, seed {seed}: {tally}")
    return 0 if tally.good else 1
