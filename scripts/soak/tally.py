"""The counts of a soak so far, and whether it passes.

Owns counts. Thread rule: any thread, one lock. Invariant: once wrong, leaked or unexpected, never
again good.
"""

import threading
from collections import Counter
from collections.abc import Sequence

from tasuki.cli.demo.token_comparison import TIE_MARGIN


class Tally:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self.troubles: list[str] = []
        """What must not be, one line each."""
        self.longest_rest = 0.0
        """The longest a round took to come to rest, seconds."""

    def count(self, what: str, times: int = 1) -> None:
        with self._lock:
            self._counts[what] += times

    def disturbed(self, fault: str) -> None:
        with self._lock:
            self._faults[fault] += 1

    def trouble(self, kind: str, story: str) -> None:
        """kind: "wrong", "leaks" or "unexpected"."""
        with self._lock:
            self._counts[kind] += 1
            self.troubles.append(f"{kind}: {story}")

    def rested(self, seconds: float) -> None:
        self.longest_rest = max(self.longest_rest, seconds)

    def __getitem__(self, what: str) -> int:
        return self._counts[what]

    @property
    def faults(self) -> dict[str, int]:
        return dict(self._faults)

    @property
    def good(self) -> bool:
        return not self.troubles

    def judge(
        self, tokens: Sequence[int], expected: Sequence[int], margins: Sequence[float], story: str
    ) -> None:
        """Compare what a client got, whole or not, with the undisturbed answer and its margins.
        Behind a near tie the two are other texts, and not compared."""
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

    def __str__(self) -> str:
        counts = ", ".join(
            f"{self._counts[what]} {what}"
            for what in (
                *("answers", "local fallbacks", "pulls", "left", "lost with decode", "tokens"),
                *("near ties", "wrong", "leaks", "unexpected"),
            )
        )
        faults = ", ".join(f"{name} {times}" for name, times in sorted(self._faults.items()))
        return f"{counts}; at rest within {self.longest_rest:.1f} s; faults: {faults or 'none'}"
