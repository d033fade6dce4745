"""How one request's answer is drafted, and what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from .drafter import Drafter, DraftSource
from .mtp_drafter import MtpDrafter


@dataclass
class DraftCount:
    """Tokens of one source. drafted: that were verified. accepted: that are the answer's."""

    drafted: int = 0
    accepted: int = 0


class Drafting:
    """The first of the drafters that has something to propose does. Thread rule: the engine
    loop's."""

    def __init__(
        self, drafters: Sequence[Drafter], most: int, mtp: MtpDrafter | None = None
    ) -> None:
        """most: drafts of one forward. mtp: of the drafters the one that the model's draft layer
        guesses for."""
        self._most = most
        self._mtp = mtp
        self.drafters = drafters
        self._proposing = drafters[0]
        self.counts: dict[DraftSource, DraftCount] = {
            drafter.source: DraftCount() for drafter in drafters
        }

    @property
    def guesses(self) -> int:
        """Tokens that the model's draft layer is to propose beside each forward."""
        return 0 if self._mtp is None else self._most

    def first_guesses(self, output: Sequence[int], most: int) -> int:
        """Tokens that it is to propose before the forward, which are then drafts of it: some where
        nobody could ask for them beside the forward before, as that was another node's. REQUIRES:
        propose() had none."""
        if self._mtp is None or self._mtp.asked(len(output)):
            return 0
        self._proposing = self._mtp
        return min(most, self._most)

    def guessed(self, tokens: tuple[int, ...], behind: int) -> None:
        """It proposed these; so many tokens of the answer stand before them."""
        if self._mtp is not None:
            self._mtp.guessed(tokens, behind)

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
        for drafter in self.drafters:
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
