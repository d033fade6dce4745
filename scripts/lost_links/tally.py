"""Outcomes of the requests, and whether each is allowed.

Owns counts. Thread rule: one thread counts, any reads. Invariant: once something was wrong, never
again good.
"""

from collections import Counter
from dataclasses import dataclass, field

HANDED_OVER, PULLED = "handed over", "handed over after a pull"
LOST, HERE = "prefilled here after a loss", "prefilled here"


@dataclass
class Tally:
    """outcomes: requests by how they were answered; faults: what was done to the link; lost:
    hand-overs by cause, as the decode node counts them; troubles: what must not be."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    lost: dict[str, int] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)
    slowest: float = 0.0

    @property
    def handed_over(self) -> int:
        return self.outcomes[HANDED_OVER] + self.outcomes[PULLED]

    @property
    def good(self) -> bool:
        return not self.troubles

    def __str__(self) -> str:
        parts = (self.outcomes, self.faults, self.lost)
        texts = [", ".join(f"{n} {name}" for name, n in sorted(part.items())) for part in parts]
        answered, faults, lost = (text or "none" for text in texts)
        text = f"{answered}; slowest {self.slowest:.1f} s; faults: {faults}"
        # Asked for once all is over.
        return f"{text}; hand-overs lost: {lost}" if self.lost else text
