"""pytest that has imported the package and collected its tests: a trial is a fork and the tests it
names, with the mutant put into the functions that are there.

Owns the process and what it starts. As a program it reads an order a line at a pipe and answers
with the id of the child that obeys it, then with the child's exit status; what came of it is in the
file that the order names. `serve` is the other half. Thread rule: one thread.
"""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Order:
    """tests: names of tests, in their order; the rest is not run after one that fails. path,
    before, after: a file and its two texts, where one is changed. traced: files whose lines are
    noted, of every test."""

    tests: Sequence[str]
    path: str = ""
    before: str = ""
    after: str = ""
    traced: Sequence[str] = ()


@dataclass(frozen=True)
class Ran:
    """One test: its processor seconds with those of its children, its seconds, what it said where
    it failed, and the lines that it ran by their file."""

    test: str
    cpu: float
    seconds: float
    failure: str | None
    lines: Mapping[str, Sequence[int]]


class Unmade(RuntimeError):
    """The order could not be obeyed: no verdict."""


class CollectedPytest:
    def __init__(self, folder: Path, environment: Mapping[str, str], files: Sequence[str]) -> None:
        """folder: where pytest runs, with room for its answers in `build`. files: what is
        collected. Raises Unmade."""
        self._answer = folder / "build" / "answer.json"
        self._log = folder / "build" / "collected.log"
        self._answer.parent.mkdir(exist_ok=True)
        theirs, self._orders = os.pipe()
        self._answers, ours = os.pipe()
        program = Path(__file__).with_name("collected_server.py")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                # -P: its own folder's modules are none of the tests'.
                (sys.executable, "-P", str(program), str(theirs), str(ours), *files),
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs, ours),
            )
        os.close(theirs)
        os.close(ours)
        self._lines = os.fdopen(self._answers, "r")
        self.tests: tuple[str, ...] = tuple(json.loads(self._line()))
        """Names of all that is collected."""

    def run(self, order: Order, seconds: float) -> list[Ran] | None:
        """What ran, of which the last may have failed; None where it did not end in time. Raises
        Unmade."""
        self._answer.unlink(missing_ok=True)
        sent = {**asdict(order), "answer": str(self._answer), "log": f"{self._log}.child"}
        os.write(self._orders, f"{json.dumps(sent)}\n".encode())
        child = int(self._line())
        ended, _, _ = select.select([self._answers], [], [], max(seconds, 1.0))
        # What a test left behind ends too.
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        status = int(self._line())
        if not ended:
            return None
        if status != 0 or not self._answer.exists():
            raise Unmade(f"a child ended with {status}: see {self._log}.child")
        return [Ran(**ran) for ran in json.loads(self._answer.read_text())]

    def close(self) -> None:
        os.close(self._orders)
        self._process.wait()
        self._lines.close()

    def _line(self) -> str:
        line = self._lines.readline()
        if not line:
            raise Unmade(f"the collecting process ended: see {self._log}")
        return line
