"""A seeded sample of mutants, tried one after another by a few workshops.

Owns the order: areas take turns, so that a large file does not crowd out the others. Thread rule: a
thread a workshop; results are shared. Invariant: a seed's order of two mutants
is the same whatever others there are.
"""

import fcntl
import hashlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from scripts.mutate.equivalents import equivalents
from scripts.mutate.mutant import Status
from scripts.mutate.results import Results, Verdict, digest_of_tests
from scripts.mutate.targets import Aim
from scripts.mutate.workshop import Baselines, BrokenWorkshop, Workshop


@dataclass(frozen=True)
class Campaign:
    """seconds: how long new mutants are begun. sample: how many there are to be, those that do not
    compile not counted. workers: mutants at a time."""

    root: Path
    seed: int
    sample: int
    seconds: float
    workers: int

    @property
    def folder(self) -> Path:
        return self.root / "build" / "mutate"


def drawn(aims: Sequence[Aim], seed: int) -> Iterator[Aim]:
    """All of them in the seed's order, the areas in turn."""
    by_area: dict[str, list[Aim]] = {}
    for aim in aims:
        by_area.setdefault(aim.target.area, []).append(aim)
    for mutants in by_area.values():
        mutants.sort(key=lambda aim: hashlib.sha256(f"{seed}/{aim.mutant.key}".encode()).digest())
    for row in itertools.zip_longest(*by_area.values()):
        yield from (aim for aim in row if aim is not None)


def run(campaign: Campaign, aims: Sequence[Aim], say: Callable[[str], None]) -> list[Verdict]:
    """Verdicts of the sample, in its order; fewer where the time was up. say: a line a mutant.
    Raises BrokenWorkshop."""
    results = Results(campaign.folder / "results.jsonl")
    excused = equivalents(campaign.root / "docs" / "testing.md")
    order = drawn(aims, campaign.seed)
    baselines = Baselines()
    deadline = time.monotonic() + campaign.seconds
    lock = threading.Lock()
    sample: dict[str, Verdict | None] = {}
    errors: list[Exception] = []
    alone = (campaign.folder / "lock").open("w")
    try:
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BrokenWorkshop("another run works here: wait for it") from error

    def take() -> Aim | None:
        with lock:
            invalid = sum(
                found is not None and found.status == "invalid" for found in sample.values()
            )
            if errors or time.monotonic() > deadline or len(sample) - invalid >= campaign.sample:
                return None
            aim = next(order, None)
            if aim is not None:
                sample[aim.mutant.key] = None
            return aim

    def work(number: int, stack: ExitStack) -> None:
        workshop: Workshop | None = None
        while (aim := take()) is not None:
            tests = digest_of_tests(campaign.root, aim)
            if results.known(aim, tests) is None:
                if workshop is None:
                    place = campaign.folder / f"worker-{number}"
                    workshop = Workshop(campaign.root, place, baselines)
                    stack.callback(workshop.close)
                change = aim.mutant.edit.shown((workshop.place / aim.path).read_bytes())
                status, seconds = workshop.try_out(aim)
                key, scope = aim.mutant.key, aim.mutant.scope_digest
                results.add(
                    Verdict(key, aim.target.area, change, status.value, seconds, scope, tests)
                )
            verdict = _excused(results[aim.mutant.key], excused)
            with lock:
                sample[aim.mutant.key] = verdict
                say(f"{len(sample)}: {verdict.status} {verdict.key}: {verdict.change}")

    def guarded(number: int) -> None:
        try:
            with ExitStack() as stack:
                work(number, stack)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(campaign.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone.close()
    if errors:
        raise errors[0]
    tried = [verdict for verdict in sample.values() if verdict is not None]
    return [verdict for verdict in tried if verdict.status != Status.INVALID.value]


def _excused(verdict: Verdict, excused: dict[str, str]) -> Verdict:
    if verdict.status == Status.SURVIVED.value and verdict.key in excused:
        return replace(verdict, status=Status.EQUIVALENT.value)
    return verdict
