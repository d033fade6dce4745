"""How one request's answer is drafted, and what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from .chances import Chances
from .drafter import Drafter, DraftSource
from .mtp_drafter import MtpDrafter


@dataclass
class DraftCount:
    """Tokens of one source, by their place in a forward's drafts. drafted: that were verified.
    accepted: that are the answer's."""

    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def add(self, drafted: int, accepted: int) -> None:
        """Of one forward."""
        missing = drafted - len(self.drafted)
        if missing > 0:
            self.drafted += [0] * missing
            self.accepted += [0] * missing
        for place in range(drafted):
            self.drafted[place] += 1
            self.accepted[place] += place < accepted


class Drafting:
    """The first of the drafters that has something to propose does. Thread rule: the engine
    loop's."""

    def __init__(
        self,
        drafters: Sequence[Drafter],
        most: int,
        mtp: MtpDrafter | None = None,
        prior: Chances | None = None,
    ) -> None:
        """most: drafts of one forward. mtp: of the drafters the one that the model's draft layer
        guesses for. prior: of others that are drafted alike."""
        self.chances = Chances(prior)
        self._most = most
        self._mtp = mtp
        self.drafters = drafters
        self._proposing = drafters[0]
        self._watched: tuple[int, tuple[int, ...]] | None = None
        """What would have been proposed behind so many tokens of the answer."""
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

    def drafts_on_lane(self, output: Sequence[int], most: int) -> int:
        """Tokens that it proposed and that the runner has, at most so many. REQUIRES: propose() had
        none."""
        if self._mtp is None:
            return 0
        count = min(most, self._most, self._mtp.on_lane(len(output)))
        if count:
            self._proposing = self._mtp
        return count

    def left_on_lane(self, count: int, behind: int) -> None:
        """As guessed(), of so many that the runner has."""
        if self._mtp is not None:
            self._mtp.left_on_lane(count, behind)

    def guessed(self, tokens: tuple[int, ...], behind: int) -> None:
        """It proposed these; so many tokens of the answer stand before them."""
        if self._mtp is not None:
            self._mtp.guessed(tokens, behind)

    def propose(self, output: Sequence[int], most: int) -> tuple[int, ...]:
        """Tokens that may follow the answer's so far, at most so many; then verified() is called,
        or nothing came of them."""
        self._watched = None
        return self._propose(output, min(most, self._most))

    def watch(self, output: Sequence[int]) -> None:
        """Learn beside steps without drafts whether some would hold: from what would be proposed,
        once the answer has gone on. What the draft layer would propose only a forward shows."""
        if self._mtp is not None:
            return
        if self._watched is not None:
            behind, drafts = self._watched
            if len(output) < behind + len(drafts):
                return
            drawn = output[behind : behind + len(drafts)]
            wrong = (place for place, token in enumerate(drafts) if drawn[place] != token)
            self._show(len(drafts), next(wrong, len(drafts)))
        drafts = self._propose(output, self._most)
        self._watched = (len(output), drafts) if drafts else None

    def _propose(self, output: Sequence[int], most: int) -> tuple[int, ...]:
        if most < 1:
            return ()
        for drafter in self.drafters:
            drafts = drafter.propose(output, most)
            if drafts:
                self._proposing = drafter
                self.chances.looked(found=True)
                return tuple(drafts)
        self.chances.looked(found=self._mtp is not None)
        return ()

    def verified(self, drafted: int, accepted: int) -> None:
        """Of so many drafts, of those proposed last, so many are the answer's."""
        self._show(drafted, accepted)
        self.counts[self._proposing.source].add(drafted, accepted)

    def _show(self, drafted: int, held: int) -> None:
        self._proposing.verified(drafted, held)
        self.chances.verified(drafted, held)
