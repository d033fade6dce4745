"""The counts of a load: turns that ended, turns that were lost, and each node's memory.

Owns counts. One event loop's thread. Invariant: a lost turn is never forgotten, so that `good` can
turn false but never true again.
"""

from collections import Counter
from dataclasses import dataclass, field

from scripts.load.memory import MemoryTrail


@dataclass
class Tally:
    turns: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    again: int = 0
    """Turns that were asked a second time because their node went away in the middle."""
    lost: Counter[str] = field(default_factory=Counter)
    """By error."""
    first_token_seconds: list[float] = field(default_factory=list)
    memory: dict[str, MemoryTrail] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return not self.lost and self.turns > 0

    def slowest(self, share: float) -> float:
        """The first-token seconds that `share` of all turns stayed under."""
        ordered = sorted(self.first_token_seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    def __str__(self) -> str:
        text = (
            f"{self.turns} turns, {self.tokens} tokens, {self.cached_tokens} of "
            f"{self.prompt_tokens} prompt tokens cached, first token p50 {self.slowest(0.5):.2f} s "
            f"p99 {self.slowest(0.99):.2f} s, asked again {self.again}, "
            f"lost {self.lost.total()}"
        )
        if self.lost:
            text += f" {dict(self.lost)}"
        return "; ".join([text, *(f"{name}: {trail}" for name, trail in self.memory.items())])
