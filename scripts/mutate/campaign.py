"""A seeded sample of mutants, tried in parallel by a few workshops (copies of the source tree).

Owns the order: areas take turns, so a large file does not crowd out the others. Thread rule: one
thread for each workshop; results are shared. Invariant: a seed's order of two mutants does not
depend on other mutants.
"""

import fcntl
import hashlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from scripts.common.command import seed_option
from scripts.mutate.mutant import Status
from scripts.mutate.results import Results, Verdict
from scripts.mutate.targets import ROOT, Aim
from scripts.mutate.touched_lines import TouchedLines
from scripts.mutate.workshop import BrokenWorkshop, Workshop
from tasuki.utils.options import option

_FOLDER = ROOT / "build" / "mutate"


@dataclass(frozen=True)
class Campaign:
    seed: int | None = seed_option()
    sample: int = option(150, "mutants, those that do not compile not counted")
    seconds: float = option(3600.0, "how long new mutants are begun")
    workers: int = option(2, "mutants at a time")
    results: str = option(str(_FOLDER / "results.jsonl"), "file of verdicts")
    only: str = option("", "keys that begin with this")
    areas: str = option("", "areas to draw from, with blanks between; all without")
    list: bool = option(False, "show the mutants, try none")


def drawn(aims: Sequence[Aim], seed: int | None) -> Iterator[Aim]:
    """Yield all mutants in the seed's random order, the areas in turn."""
    by_area: dict[str, list[Aim]] = {}
    for aim in aims:
        by_area.setdefault(aim.target.area, []).append(aim)
    for mutants in by_area.values():
        mutants.sort(key=lambda aim: hashlib.sha256(f"{seed}/{aim.mutant.key}".encode()).digest())
    for row in itertools.zip_longest(*by_area.values()):
        yield from (aim for aim in row if aim is not None)


class _Sample:
    """The mutants of the sample still to try. Thread rule: any thread, one lock."""

    def __init__(self, campaign: Campaign, aims: Sequence[Aim], results: Results) -> None:
        self._campaign = campaign
        self._order = drawn(aims, campaign.seed)
        self._deadline = time.monotonic() + campaign.seconds
        self._results = results
        self._lock = threading.Lock()
        self._taken: list[Aim] = []
        self._waiting: list[Aim] = []
        self.over = False

    def take(self) -> Aim | None:
        """Return the sample's next mutant without a verdict, or None if there is none. Python
        mutants come first, because their trials cost a tenth."""
        with self._lock:
            if self.over or time.monotonic() > self._deadline:
                return None
            pending = len(self._taken) - len(self._known())
            missing = self._campaign.sample - len(self.verdicts()) - pending
            for aim in itertools.islice(self._order, missing):
                self._taken.append(aim)
                if self._results.known(aim) is None:
                    self._waiting.append(aim)
            self._waiting.sort(key=lambda aim: aim.is_cpp)
            return self._waiting.pop(0) if self._waiting else None

    def verdicts(self) -> list[Verdict]:
        """Return the known verdicts of valid mutants, in the order of the sample."""
        return [each for each in self._known() if each.status != Status.INVALID.value]

    def _known(self) -> list[Verdict]:
        return [found for aim in self._taken if (found := self._results.known(aim)) is not None]


def run(campaign: Campaign, aims: Sequence[Aim], say: Callable[[str], None]) -> list[Verdict]:
    """Try the sample and return its verdicts in order; fewer if the time ran out. say: receives one
    line for each mutant. Raises BrokenWorkshop."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / "lock").open("w") as alone:
        try:
            fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BrokenWorkshop("another run works here: wait for it") from error
        results = Results(Path(campaign.results), ROOT)
        sample = _Sample(campaign, aims, results)
        touched = TouchedLines(ROOT, aims)

        def work(number: int) -> None:
            try:
                workshop = Workshop(ROOT, _FOLDER / f"worker-{number}", touched)
                while (aim := sample.take()) is not None:
                    begun = time.monotonic()
                    status, by = workshop.try_out(aim)
                    found = results.add(aim, status, by, time.monotonic() - begun)
                    say(f"{found.status} {found.seconds:.0f} s {found.key}: {found.change}")
            finally:
                # Stop the other workers if this one failed.
                sample.over = True

        with ThreadPoolExecutor(campaign.workers) as pool:
            for done in [pool.submit(work, number) for number in range(campaign.workers)]:
                done.result()
    return sample.verdicts()
