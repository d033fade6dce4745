"""The counts of a run so far, and its troubles (forbidden results).

Owns counts. Thread rule: any thread, one lock. Invariant: after a trouble the run never counts as
good again.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Sequence

from tasuki.cli.demo import TIE_MARGIN

_MIB = 2**20


class MemoryTrail:
    """Samples of one process's resident bytes at even intervals, and a test of their growth."""

    def __init__(self) -> None:
        self._samples: list[int] = []

    def add(self, resident: int) -> None:
        self._samples.append(resident)

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def growth(self) -> int:
        """Return the growth in bytes from the third fifth of the samples to the last fifth, each by
        its lowest sample. The lowest sample excludes memory of running forwards, and keeps leaks.
        Earlier samples are warm-up: the arena's pages are touched for the first time, and the logs
        of ended requests fill. Returns 0 before there are enough samples."""
        fifth = len(self._samples) // 5
        if not fifth:
            return 0
        middle, last = self._samples[2 * fifth : 3 * fifth], self._samples[-fifth:]
        return min(last) - min(middle)

    def is_flat(self, share: float = 0.03) -> bool:
        """Return True if growth() is at most `share` of the process's memory."""
        return not self._samples or self.growth <= share * self._samples[-1]

    def __str__(self) -> str:
        last = self._samples[-1] if self._samples else 0
        return f"{last / _MIB:.0f} MiB, {self.growth / _MIB:+.1f} MiB since its warm-up"


class Tally:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)
        self.faults: Counter[str] = Counter()
        """Number of faults injected into the nodes and their connections, by fault."""
        self.lost: Counter[str] = Counter()
        """Lost transfers by cause, from the decode node's counters after the run."""
        self.memory: dict[str, MemoryTrail] = {}
        """Memory samples by a process's name."""
        self.troubles: list[str] = []
        """The forbidden results, one line each."""

    def count(self, what: str, times: int = 1) -> None:
        with self._lock:
            self._counts[what] += times

    def took(self, what: str, seconds: float) -> None:
        with self._lock:
            self._seconds[what].append(seconds)

    def disturbed(self, fault: str) -> None:
        with self._lock:
            self.faults[fault] += 1

    def trouble(self, kind: str, story: str) -> None:
        """Record a forbidden result. kind: one word, also counted. story: its description."""
        self.count(kind)
        self.troubles.append(f"{kind}: {story}")

    def judge(
        self, tokens: Sequence[int], expected: Sequence[int], margins: Sequence[float], story: str
    ) -> None:
        """Compare a client's tokens, whole or cut short, with the undisturbed answer. margins:
        distance of the two likeliest tokens at each step. A difference at a near tie ends the
        comparison, and is no trouble."""
        for position, token in enumerate(tokens):
            if position >= len(expected):
                self.trouble("wrong", f"{story}: more than {len(expected)} tokens")
                return
            if token == expected[position]:
                self.count("tokens")
                continue
            if margins[position] < TIE_MARGIN:
                self.count("near ties")
            else:
                self.trouble("wrong", f"{story}: token {position} of {len(expected)}")
            return

    def __getitem__(self, what: str) -> int:
        return self._counts[what]

    @property
    def good(self) -> bool:
        return not self.troubles

    def __str__(self) -> str:
        parts = [", ".join(f"{times} {what}" for what, times in self._counts.items()) or "nothing"]
        for what, seconds in self._seconds.items():
            ordered = sorted(seconds)
            middle, late = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99))
            parts.append(f"{what} p50 {middle:.2f} p99 {late:.2f} max {ordered[-1]:.2f} s")
        for name, counts in (("faults", self.faults), ("hand-overs lost", self.lost)):
            if counts:
                shown = ", ".join(f"{times} {what}" for what, times in sorted(counts.items()))
                parts.append(f"{name}: {shown}")
        return "; ".join([*parts, *(f"{name}: {trail}" for name, trail in self.memory.items())])
