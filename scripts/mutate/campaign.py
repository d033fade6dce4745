"""A seeded sample of mutants, tried one after another by a few workshops.

Owns the order: areas take turns, so that a large file does not crowd out the others. First each is
tried with the tests that run what it changes; then those that outlived these with all of theirs,
which takes long. Thread rule: a thread a workshop; results are shared. Invariant: a seed's order of
two mutants is the same whatever others there are.
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
from scripts.mutate.touched_lines import TouchedLines
from scripts.mutate.workshop import Baselines, BrokenWorkshop, Trial, Workshop


@dataclass(frozen=True)
class Campaign:
    """results: the file of verdicts. seconds: how long new mutants are begun. sample: how many
    there are to be, those that do not compile not counted. workers: mutants at a time."""

    root: Path
    results: Path
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


class _Sample:
    """What is to be tried and what came of it. Thread rule: any thread, one lock."""

    def __init__(self, campaign: Campaign, aims: Sequence[Aim]) -> None:
        self._campaign = campaign
        self._order = drawn(aims, campaign.seed)
        self._deadline = time.monotonic() + campaign.seconds
        self._results = Results(campaign.results)
        self._lock = threading.Lock()
        self._taken: dict[str, Aim] = {}
        self._waiting: list[Aim] = []
        self._statuses: dict[str, Status] = {}
        self._again: set[str] = set()
        self.errors: list[Exception] = []

    def take(self) -> Aim | None:
        """The next of the sample that nothing is known of; none where that is all. Python comes
        first, where a trial costs a hundredth."""
        with self._lock:
            if self._is_over():
                return None
            self._draw()
            self._waiting.sort(key=lambda aim: aim.is_cpp)
            return self._waiting.pop(0) if self._waiting else None

    def _draw(self) -> None:
        invalid = list(self._statuses.values()).count(Status.INVALID)
        missing = self._campaign.sample + invalid - len(self._taken)
        for aim in itertools.islice(self._order, missing):
            self._taken[aim.mutant.key] = aim
            known = self._results.known(aim, digest_of_tests(self._campaign.root, aim))
            if known is None:
                self._waiting.append(aim)
            else:
                self._statuses[aim.mutant.key] = known

    def take_again(self) -> Aim | None:
        """The next that outlived the tests that it was tried with first."""
        with self._lock:
            for key, status in self._statuses.items():
                if self._is_over():
                    return None
                if status is Status.UNNOTICED and key not in self._again:
                    self._again.add(key)
                    return self._taken[key]
        return None

    def add(self, aim: Aim, trial: Trial) -> Verdict:
        verdict = Verdict(
            key=aim.mutant.key,
            area=aim.target.area,
            change=aim.mutant.edit.shown((self._campaign.root / aim.path).read_bytes()),
            status=trial.status.value,
            seconds=round(trial.seconds, 1),
            scope=aim.mutant.scope_digest,
            tests=digest_of_tests(self._campaign.root, aim),
            by=trial.by,
        )
        self._results.add(verdict)
        with self._lock:
            self._statuses[verdict.key] = trial.status
        return verdict

    def verdicts(self) -> list[Verdict]:
        """Of the mutants, in the order of the sample."""
        known = (key for key in self._taken if key in self._statuses)
        found = [self._results[key] for key in known]
        return [verdict for verdict in found if verdict.status != Status.INVALID.value]

    def _is_over(self) -> bool:
        return bool(self.errors) or time.monotonic() > self._deadline


def run(campaign: Campaign, aims: Sequence[Aim], say: Callable[[str], None]) -> list[Verdict]:
    """Verdicts of the sample, in its order; fewer where the time was up. say: a line a mutant.
    Raises BrokenWorkshop."""
    campaign.folder.mkdir(parents=True, exist_ok=True)
    excused = equivalents(campaign.root / "docs" / "testing.md")
    with (campaign.folder / "lock").open("w") as alone:
        try:
            fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BrokenWorkshop("another run works here: wait for it") from error
        sample = _Sample(campaign, aims)
        baselines = Baselines()
        touched = TouchedLines(campaign.root, campaign.folder / "touched.jsonl", aims)

        def report(aim: Aim, trial: Trial) -> None:
            verdict = _excused(sample.add(aim, trial), excused)
            say(f"{verdict.status} {verdict.seconds:.0f} s {verdict.key}: {verdict.change}")

        def work(number: int) -> None:
            try:
                with ExitStack() as stack:
                    place = campaign.folder / f"worker-{number}"
                    workshop = Workshop(campaign.root, place, baselines, touched)
                    stack.callback(workshop.close)
                    while (aim := sample.take()) is not None:
                        report(aim, workshop.glance(aim))
                    while (aim := sample.take_again()) is not None:
                        report(aim, workshop.try_out(aim))
            except Exception as error:
                sample.errors.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(campaign.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if sample.errors:
        raise sample.errors[0]
    return [_excused(verdict, excused) for verdict in sample.verdicts()]


def _excused(verdict: Verdict, excused: dict[str, str]) -> Verdict:
    lives = verdict.status in (Status.SURVIVED.value, Status.UNNOTICED.value)
    if lives and verdict.key in excused:
        return replace(verdict, status=Status.EQUIVALENT.value)
    return verdict
