"""`python -m scripts.gpu --out build/gpu`: runs the checks needing a GPU, one command after
another.

Keeps a table of passed commands beside the logs and the figures during the run, so an interrupted
run keeps its results. Exit status 1 if one failed or ran out of time.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.common.command import head, row, show
from tasuki.utils.flags import parse_config
from tasuki.utils.options import option

from .plan import Plan
from .run import Outcome, Run, Verdict, done, outcomes_of, visible_gpus


@dataclass(frozen=True)
class Settings:
    out: str = option("build/gpu", "folder of logs, figures and the table")
    only: str = option("", "names of runs, by commas, in the plan's order; or beginnings of them")
    seconds: float = option(1500.0, "for all: what does not end by then is left out")
    arena_mib: int = option(90_000, "of each node of agents; 44000 on an H100")
    commit: str = option("", "of the source, where it is no git tree")


def main(argv: Sequence[str]) -> int:
    settings = parse_config("python -m scripts.gpu", "What only GPUs show.", argv, Settings)
    out = Path(settings.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + settings.seconds

    def outcome(run: Run, gpus: Sequence[str]) -> Outcome:
        if time.monotonic() + run.seconds > ends:
            return Outcome(run, Verdict.TOO_LATE, 0.0)
        return done(run, sys.executable, out / f"{run.name}.log", gpus)

    outcomes: list[Outcome] = []
    runs = _chosen(Plan(out, settings.commit, settings.arena_mib).runs(), settings.only)
    for one in outcomes_of(runs, visible_gpus(), outcome):
        outcomes.append(one)
        (out / "runs.md").write_text(_table(outcomes))
        show(_row(one))
    bad = (Verdict.FAILED, Verdict.OUT_OF_TIME)
    return 1 if any(outcome.verdict in bad for outcome in outcomes) else 0


def _chosen(runs: Sequence[Run], only: str) -> list[Run]:
    """Return the runs named by `only`: beginnings of names, separated by commas; empty: all. Raises
    SystemExit if no name begins with one of them."""
    if not only:
        return list(runs)
    beginnings = tuple(only.split(","))
    for beginning in beginnings:
        if not beginning or not any(run.name.startswith(beginning) for run in runs):
            names = ", ".join(run.name for run in runs)
            raise SystemExit(f"scripts.gpu: no run begins with {beginning!r}: known are {names}")
    return [run for run in runs if run.name.startswith(beginnings)]


def _table(outcomes: Sequence[Outcome]) -> str:
    lines = [head("run", "verdict", "seconds", "decides"), *map(_row, outcomes)]
    return "".join(f"{line}\n" for line in lines)


def _row(outcome: Outcome) -> str:
    run = outcome.run
    return row(run.name, outcome.verdict.value, f"{outcome.seconds:.0f}", run.decides)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
