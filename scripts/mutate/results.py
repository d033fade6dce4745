"""The verdicts of mutants, a JSON line each, so that a run goes on where the last one ended.

Owns the file. Thread rule: any thread, one lock. Invariant: a verdict counts only for the symbol's
text that it was given for, and that of one that lives only for the tests that it outlived.
"""

import hashlib
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.mutate import kept_rows
from scripts.mutate.mutant import Status
from scripts.mutate.targets import Aim


@dataclass(frozen=True)
class Verdict:
    """scope, tests: digests of the symbol's text and of the tests' files. by: the test that noticed
    it."""

    key: str
    area: str
    change: str
    status: str
    seconds: float
    scope: str
    tests: str
    by: str = ""


class Results:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._verdicts: dict[str, Verdict] = {}
        for row in kept_rows.read(path):
            verdict = Verdict(**row)
            self._verdicts[verdict.key] = verdict
        kept_rows.replace(path, map(asdict, self._verdicts.values()))

    def known(self, aim: Aim, tests: str) -> Status | None:
        verdict = self._verdicts.get(aim.mutant.key)
        if verdict is None or verdict.scope != aim.mutant.scope_digest:
            return None
        status = Status(verdict.status)
        lives = status in (Status.SURVIVED, Status.UNNOTICED)
        return None if lives and verdict.tests != tests else status

    def add(self, verdict: Verdict) -> None:
        with self._lock:
            self._verdicts[verdict.key] = verdict
            kept_rows.add(self._path, asdict(verdict))

    def __getitem__(self, key: str) -> Verdict:
        return self._verdicts[key]


def digest_of_tests(root: Path, aim: Aim) -> str:
    """Of the target's test files, C++ ones included where they matter."""
    paths = [root / run for run in aim.target.runs]
    if aim.is_cpp:
        paths += sorted((root / "cpp_cache/tests").glob("*"))
    found = hashlib.sha256()
    for path in paths:
        found.update(path.read_bytes())
    return found.hexdigest()[:16]
