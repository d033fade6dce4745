"""Parts common to the commands in scripts/: settings with a random seed, unbuffered output lines,
Markdown rows, a verdict."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from scripts.common.tally import Tally
from tasuki.utils.flags import parse_config
from tasuki.utils.options import option

Settings = TypeVar("Settings", bound=Any)


def seed_option() -> Any:
    return option(None, "drawn and printed if not given")


def drawn_seed() -> int:
    """Return a random seed."""
    return random.SystemRandom().randrange(2**32)


def settings_of(module: str, about: str, kind: type[Settings], argv: Sequence[str]) -> Settings:
    """Read settings from flags; without a `seed` flag the seed is random."""
    settings = parse_config(f"python -m {module}", about, argv, kind)
    return replace(settings, seed=drawn_seed()) if settings.seed is None else settings


def show(line: str) -> None:
    print(line, flush=True)


def row(*cells: object) -> str:
    """Return a line of a Markdown table with the given cells."""
    flat = (str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells)
    return f"| {' | '.join(flat)} |"


def head(*columns: str) -> str:
    """Return the heading line of a Markdown table and the line below it."""
    return f"{row(*columns)}\n{row(*['---'] * len(columns))}"


def concluded(name: str, seed: int, tally: Tally) -> int:
    """Print the tally's troubles and the verdict, and return the exit status: 1 with troubles."""
    for trouble in tally.troubles:
        print(trouble)
    show(f"{name}: {'PASSED' if tally.good else 'FAILED'}, seed {seed}: {tally}")
    return 0 if tally.good else 1
