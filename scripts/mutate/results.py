"""A file of mutants' verdicts, a JSON line each, so a run continues from the last one.

Owns the file. Thread rule: any thread, one lock. Invariant: a verdict counts only for the
function's text at its trial. A survivor's verdict counts only for the tests at its trial.
"""

import hashlib
import json
import threading
import tomllib
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from scripts.mutate.mutant import Status
from scripts.mutate.targets import Aim

_EQUIVALENTS = Path("scripts/mutate/equivalents.toml")


@dataclass(frozen=True)
class Verdict:
    """One mutant's verdict. scope: digest of the changed function's text. tests: digest of the test
    files. by: name of the failed test."""

    key: str
    area: str
    change: str
    status: str
    seconds: float
    scope: str
    tests: str
    by: str = ""


class Results:
    def __init__(self, path: Path, root: Path) -> None:
        """Read the known verdicts. path: the file; it only grows during a run, and an incomplete
        last line is left out. root: folder of the checkout. Raises ValueError if another line is
        not a verdict."""
        self._path = path
        self._root = root
        self._lock = threading.Lock()
        self._equivalents = equivalents(root / _EQUIVALENTS)
        *whole, _torn = path.read_text().split("\n") if path.exists() else [""]
        rows = [Verdict(**json.loads(line)) for line in whole]
        self._verdicts = {verdict.key: verdict for verdict in rows}
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text("".join(map(_line, self._verdicts.values())))
        fresh.replace(path)

    def known(self, aim: Aim) -> Verdict | None:
        verdict = self._verdicts.get(aim.mutant.key)
        if verdict is None or verdict.scope != aim.mutant.scope_digest:
            return None
        # "unnoticed" is a status of runs ended before all tests were tried.
        lives = verdict.status in (Status.SURVIVED.value, "unnoticed")
        if lives and (verdict.status == "unnoticed" or verdict.tests != self._tests_of(aim)):
            return None
        return self._judged(verdict)

    def add(self, aim: Aim, status: Status, by: str, seconds: float) -> Verdict:
        change = aim.mutant.edit.shown((self._root / aim.path).read_bytes())
        verdict = Verdict(
            *(aim.mutant.key, aim.target.area, change, status.value, round(seconds, 1)),
            *(aim.mutant.scope_digest, self._tests_of(aim), by),
        )
        with self._lock, self._path.open("a") as file:
            self._verdicts[verdict.key] = verdict
            file.write(_line(verdict))
        return self._judged(verdict)

    def _judged(self, verdict: Verdict) -> Verdict:
        lives = verdict.status == Status.SURVIVED.value
        excused = lives and verdict.key in self._equivalents
        return replace(verdict, status=Status.EQUIVALENT.value) if excused else verdict

    def _tests_of(self, aim: Aim) -> str:
        """Return a digest of the test files of the mutant's target, including C++ tests for a C++
        target."""
        paths = [self._root / run for run in aim.target.runs]
        paths += sorted((self._root / "cpp_cache/tests").glob("*")) if aim.is_cpp else []
        return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def _line(verdict: Verdict) -> str:
    return f"{json.dumps(asdict(verdict))}\n"


def equivalents(file: Path) -> dict[str, str]:
    """Return the reasons for equivalent mutants, by key. file: `equivalents.toml` or one of its
    form."""
    return tomllib.loads(file.read_text())
