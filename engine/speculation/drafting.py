"""How one request's answer is drafted, and what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from .drafter import Drafter, DraftSource


@dataclass
class DraftCount:
    """Tokens of one source. drafted: that were verified. accepted: that are the answer's."""

    drafted: int = 0
    accepted: int = 0


class Drafting:
    """The first of the drafters that has something to propose does. Thread rule: the engine
    loop's."""

    def __init__(self, drafters: Sequence[Drafter], most: int) -> None:
        """most: drafts of one forward."""
        self._most = most
        self._drafters = drafters
        self._proposing = drafters[0]
        self.counts: dict[DraftSource, DraftCount] = {
            drafter.source: DraftCount() for drafter in drafters
        }

    @property
    def total(self) -> DraftCount:
        """Of all sources."""
        counts = self.counts.values()
        return DraftCount(sum(c.drafted for c in counts), sum(c.accepted for c in counts))

    def propose(self, output: Sequence[int], most: int) -> tuple[int, ...]:
        """Tokens that may follow the answer's so far, at most so many; then verified() is called,
        or nothing came of them."""
        most = min(most, self._most)
        if most < 1:
            return ()
        for drafter in self._drafters:
            drafts = drafter.propose(output, most)
            if drafts:
                self._proposing = drafter
                return tuple(drafts)
        return ()

    def verified(self, drafted: int, accepted: int) -> None:
        """Of so many drafts, of those proposed last, so many are the answer's."""
        self._proposing.verified(drafted, accepted)
        count = self.counts[self._proposing.source]
        count.drafted += drafted
        count.accepted += accepted
