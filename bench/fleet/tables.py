"""The tables of docs/results/routing.md: `python -m tasuki.bench.fleet.tables TRACE --out FILE`.

Each row is a separate `tasuki simulate`. The run stores its outcome in the file, so an interruption
loses one row.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

Flags = tuple[str, ...]

_SEEDS = ("--seeds", "5")
_STALE = ("--index-seconds", "5", "--report-delay", "5")
_LOST = ("--lost", "0.01")
_DEAD = ("--dead", "0.05")
_FAULTS: tuple[Flags, ...] = (_STALE, _LOST, _DEAD, (*_STALE, *_LOST, *_DEAD))
_SWEPT: tuple[Flags, ...] = (
    *(("--index-seconds", old, "--report-delay", old) for old in ("1", "2", "10")),
    *(("--lost", share) for share in ("0.001", "0.1")),
    *(("--dead", share) for share in ("0.1", "0.25")),
    ("--lying", "0.05"),
)
_SIXTEEN = ("--nodes", "16", "--streams", "4")
_SIXTY_FOUR = ("--nodes", "64", "--streams", "16", "--seconds", "600", "--warm-up", "200")
_THOUSAND = ("--nodes", "1000", "--streams", "250", "--seconds", "1200", "--warm-up", "300")


def _routes(shared: Flags, *routes: str) -> Iterator[Flags]:
    for route in routes:
        yield (*shared, "--route", route)


def _swept(shared: Flags, many: str) -> Iterator[Flags]:
    """Yield the flags of each run of a sweep over decider counts and faults, with the other routes
    as bounds. shared: flags of all runs. many: number of deciders in the runs varying a fault."""
    yield from _routes(shared, "one-cache", "sticky", "fewest-rooms", "random")
    yield (*shared, "--route", "sticky", *_DEAD)
    for deciders in ("2", "16", "250"):
        cost = (*shared, "--route", "cost", "--deciders", deciders)
        yield cost
        yield (*cost, *_FAULTS[-1])
    for deciders in ("1", "64"):
        yield (*shared, "--route", "cost", "--deciders", deciders)
    for fault in (*_FAULTS[:-1], *_SWEPT):
        yield (*shared, "--route", "cost", "--deciders", many, *fault)
    for share in ("0.1", "0.25"):
        yield (*shared, "--route", "sticky", "--deciders", many, "--dead", share)


def rows(table: str) -> Iterator[Flags]:
    """Yield the flags of each row of a table. table: one of NAMES."""
    match table:
        case "4":
            all_routes = ("one-cache", "cost", "sticky", "pull", "fewest-rooms", "random")
            yield from _routes((*_SEEDS, "--nodes", "4"), *all_routes)
        case "16":
            yield from _routes((*_SEEDS, *_SIXTEEN), "one-cache", "cost", "sticky")
        case "16-faults":
            yield from _swept((*_SEEDS, *_SIXTEEN, "--seconds", "1800", "--warm-up", "600"), "2")
        case "64":
            yield from _swept((*_SEEDS, *_SIXTY_FOUR), "16")
        case _:
            thousand = (*_THOUSAND, "--deciders", "16")
            yield from _routes(thousand, "one-cache", "cost", "sticky")


NAMES = ("4", "16", "16-faults", "64", "1000")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", choices=NAMES, action="append")
    values = parser.parse_args()
    tasuki = (str(Path(sys.executable).with_name("tasuki")), "simulate", str(values.file))
    for table in values.table or NAMES:
        for flags in rows(table):
            print(" ".join(flags), flush=True)
            subprocess.run((*tasuki, *flags, "--out", str(values.out)), check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
