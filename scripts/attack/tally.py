"""The counts of one attack: its tries, their outcomes, and its findings (forbidden results).

Owns counts. Thread rule: any thread, one lock. Invariant: a finding is never taken back.
"""

import threading
from collections import Counter

_MOST_FINDINGS = 20


class Tally:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcomes: Counter[str] = Counter()
        self.findings: list[str] = []
        """The first forbidden results, one line each."""

    def note(self, outcome: str) -> None:
        """Count one try by its outcome."""
        with self._lock:
            self._outcomes[outcome] += 1

    def finding(self, story: str) -> None:
        with self._lock:
            if story not in self.findings and len(self.findings) < _MOST_FINDINGS:
                self.findings.append(story)

    @property
    def tries(self) -> int:
        return sum(self._outcomes.values())

    def __getitem__(self, outcome: str) -> int:
        return self._outcomes[outcome]

    @property
    def summary(self) -> str:
        return ", ".join(f"{times} {outcome}" for outcome, times in self._outcomes.most_common(8))
