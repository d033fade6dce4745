"""Which tests run a line, and what each costs: noted once with nothing changed, kept in a file.

It chooses which tests try a mutant first and how long they may take, no verdict: a mutant that they
do not notice is tried with all. Owns the file. Thread rule: any thread, one lock.
"""

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.common.package_copy import tracked
from scripts.mutate import kept_rows
from scripts.mutate.collected_pytest import Ran
from scripts.mutate.targets import Aim


@dataclass(frozen=True)
class Noted:
    """file: of tests. text: a digest of it and of all that it may run. tests: those that passed."""

    file: str
    text: str
    tests: Sequence[Ran]


class TouchedLines:
    def __init__(self, root: Path, path: Path, aims: Sequence[Aim]) -> None:
        """path: of the file. aims: whose files' lines are noted."""
        self.mutated = sorted({aim.path for aim in aims if not aim.is_cpp})
        self._root = root
        self._path = path
        self._lock = threading.Lock()
        self._sources = _digest(root, _sources(root))
        self._noted: dict[str, Noted] = {}
        for row in kept_rows.read(path):
            noted = Noted(row["file"], row["text"], [Ran(**ran) for ran in row["tests"]])
            self._noted[noted.file] = noted
        kept_rows.replace(path, map(asdict, self._noted.values()))

    def touching(self, aim: Aim, file: str, measure: Callable[[str], list[Ran]]) -> list[Ran]:
        """Tests of one of the aim's files that run what the mutant changes, the cheapest first.
        measure: runs the file, noting lines, where that is not known."""
        source = (self._root / aim.path).read_bytes()
        first = source.count(b"\n", 0, aim.mutant.edit.start) + 1
        last = source.count(b"\n", 0, aim.mutant.edit.end) + 1
        found = [
            ran
            for ran in self._of(file, measure).tests
            if any(first <= line <= last for line in ran.lines.get(str(aim.path), ()))
        ]
        # Coarse and stable: below that a busy machine decides, and a file has its plain case
        # before one that waits without end for what a mutant broke.
        return sorted(found, key=lambda ran: (round(ran.cpu, 1), round(ran.seconds)))

    def _of(self, file: str, measure: Callable[[str], list[Ran]]) -> Noted:
        text = _digest(self._root, [Path(file)]) + self._sources
        with self._lock:
            noted = self._noted.get(file)
            if noted is None or noted.text != text:
                passed = [ran for ran in measure(file) if ran.failure is None]
                noted = self._noted[file] = Noted(file, text, passed)
                kept_rows.add(self._path, asdict(noted))
            return noted


def _sources(root: Path) -> list[Path]:
    """What a test file may run: all Python but other test files and what runs none of it."""
    return [
        path
        for path in tracked(root)
        if path.suffix == ".py"
        and path.parts[0] not in ("scripts", "bench", "tools", "docs")
        and not path.name.startswith("test_")
    ]


def _digest(root: Path, paths: Sequence[Path]) -> str:
    found = hashlib.sha256()
    for path in paths:
        found.update(str(path).encode())
        found.update((root / path).read_bytes())
    return found.hexdigest()[:16]
