"""The drafting of one request's answer, and the count of accepted drafts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate
from operator import mul
from typing import Protocol


class DraftSource(Enum):
    """The source of a draft.

    prediction: the answer predicted by the request. mtp: the model's own draft layer. block: a
    block drafter beside the model. tree: tokens found after the same tokens in an earlier text.
    grammar: text without alternatives in the answer's grammar.
    """

    PREDICTION = "prediction"
    MTP = "mtp"
    BLOCK = "block"
    TREE = "tree"
    GRAMMAR = "grammar"


class Drafter(Protocol):
    """A source of drafts for the next tokens of one request's answer. A draft is only a guess: the
    model samples every token itself, for any proposal (engine/runner/cpu_runner.py).

    Thread rule: the engine loop's.
    """

    @property
    def source(self) -> DraftSource: ...

    def propose(self, output: Sequence[int], most: int) -> list[int]:
        """Return at most `most` possible next tokens of the answer; none if the source has no
        guess. output: the answer so far; it only grows from call to call."""

    def verified(self, drafted: int, accepted: int) -> None:
        """Record the result of the last proposal: the model verified its first `drafted` drafts and
        accepted `accepted` of them."""


_PRIOR_WEIGHT = 2.0
"""Weight of the prior acceptance rates, as a number of drafts counted before the request's own; it
fades too."""
_FADES = 0.8
"""Factor on a draft's weight after each later draft of the same position, for one request."""
_FADES_TOGETHER = 0.98
_FIRST_GUESS = 0.6
"""Acceptance assumed before any verification: a try is worthwhile, and a few failures end it."""


class Chances:
    """Acceptance rates of drafts by position in a row, given that all earlier ones were accepted.
    Newer results count more.

    Owns the latest results. Thread rule: the engine loop's.
    """

    def __init__(self, prior: "Chances | None" = None) -> None:
        """prior: acceptance rates shared by similar requests. They replace missing results of this
        request, and its results are added to them."""
        self._prior = prior
        self._fades = _FADES_TOGETHER if prior is None else _FADES
        self._tried: list[float] = []
        self._held: list[float] = []
        self._found = 1.0
        self._gains: list[float] | None = None

    def verified(self, drafted: int, held: int) -> None:
        """Record a verified row of one or more `drafted` drafts; the first `held` were accepted."""
        if self._prior is not None:
            self._prior.verified(drafted, held)
        self._gains = None
        while len(self._tried) < drafted:
            self._held.append(_PRIOR_WEIGHT * self._likely(len(self._tried)))
            self._tried.append(_PRIOR_WEIGHT)
        for place in range(min(drafted, held + 1)):
            self._tried[place] = self._tried[place] * self._fades + 1
            self._held[place] = self._held[place] * self._fades + (place < held)

    def looked(self, *, found: bool) -> None:
        """Record a search for drafts. found: True if it found any."""
        self._found = self._found * _FADES + found * (1 - _FADES)

    @property
    def found(self) -> float:
        """Chance of a search to find drafts, from recent searches."""
        return self._found

    def gains(self, most: int) -> Sequence[float]:
        """Return the mean number of accepted drafts in rows of 1, 2, .. `most` drafts."""
        if self._gains is None or len(self._gains) < most:
            reached = accumulate((self._likely(place) for place in range(most)), mul)
            self._gains = list(accumulate(reached))
        return self._gains[:most]

    def _likely(self, place: int) -> float:
        if place < len(self._tried):
            return self._held[place] / self._tried[place]
        return _FIRST_GUESS if self._prior is None else self._prior._likely(place)


class RunnerDrafter:
    """Drafts made by the runner at the previous forward (model/drafts.py).

    Owns the newest drafts, or their number if the runner keeps them, and the answer's length before
    them. Thread rule: the engine loop's.
    """

    source: DraftSource

    def __init__(self) -> None:
        self._guessed: tuple[int, ...] = ()
        self._at_index = 0
        self._behind = 0
        """Number of the answer's tokens before the newest drafts. 0: no drafts were requested yet;
        the answer's first token is sampled without drafts."""

    def guessed(self, tokens: tuple[int, ...], behind: int) -> None:
        """Store the runner's drafts, made after `behind` tokens of the answer."""
        self._guessed, self._at_index, self._behind = tokens, 0, behind

    def left_at_index(self, count: int, behind: int) -> None:
        """Record `count` drafts kept by the runner at the request's batch index, made after
        `behind` tokens of the answer."""
        self._guessed, self._at_index, self._behind = (), count, behind

    def at_index(self, behind: int) -> int:
        """Return the number of drafts kept by the runner, if they were made after `behind` tokens
        of the answer; else 0."""
        return self._at_index if behind == self._behind else 0

    def asked(self, behind: int) -> bool:
        """Return True if drafts after `behind` tokens of the answer were asked of the runner."""
        return self._behind == behind

    def propose(self, output: Sequence[int], most: int) -> list[int]:
        return list(self._guessed[:most]) if len(output) == self._behind else []

    def verified(self, drafted: int, accepted: int) -> None:
        """Do nothing: the runner's next drafts do not depend on the outcome of these."""


class MtpDrafter(RunnerDrafter):
    """Drafts of the model's draft layer, one after the other."""

    source = DraftSource.MTP


class BlockDrafter(RunnerDrafter):
    """Drafts of a block drafter beside the model, in one pass."""

    source = DraftSource.BLOCK


@dataclass
class DraftCount:
    """Counts of one source's drafts, by position in a forward's drafts. drafted: verified drafts.
    accepted: drafts in the answer."""

    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def add(self, drafted: int, accepted: int) -> None:
        """Add the counts of one forward: numbers of verified and of accepted drafts."""
        missing = drafted - len(self.drafted)
        if missing > 0:
            self.drafted += [0] * missing
            self.accepted += [0] * missing
        for place in range(drafted):
            self.drafted[place] += 1
            self.accepted[place] += place < accepted


class Drafting:
    """The drafting of one request's answer, and its results.

    The first drafter with a proposal is used. Thread rule: the engine loop's.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        most: int,
        by_runner: RunnerDrafter | None = None,
        prior: Chances | None = None,
    ) -> None:
        """drafters: sources in the order of use. most: most drafts of one forward. by_runner: the
        one of `drafters` with drafts made by the runner, if any. prior: acceptance rates of
        requests with the same first source."""
        self.chances = Chances(prior)
        self._most = most
        self._by_runner = by_runner
        self.drafters = drafters
        self._proposing = drafters[0]
        self._watched: tuple[int, tuple[int, ...]] | None = None
        """The answer's length while watching, and the drafts proposed then, to compare later."""
        self.counts: dict[DraftSource, DraftCount] = {
            drafter.source: DraftCount() for drafter in drafters
        }

    @property
    def guesses(self) -> int:
        """Number of tokens to be proposed by the runner after each forward; 0: it proposes none."""
        return 0 if self._by_runner is None else self._most

    def first_guesses(self, output: Sequence[int], most: int) -> int:
        """Return the number of drafts the runner should make before the forward, for this
        forward. Above 0 only if the previous forward could not make them, because it ran on another
        node. REQUIRES: propose() returned none."""
        if self._by_runner is None or self._by_runner.asked(len(output)):
            return 0
        self._proposing = self._by_runner
        return min(most, self._most)

    def drafts_at_index(self, output: Sequence[int], most: int) -> int:
        """Return the number of drafts made and kept by the runner, at most `most`; 0 if none are.
        REQUIRES: propose() returned none."""
        if self._by_runner is None:
            return 0
        count = min(most, self._most, self._by_runner.at_index(len(output)))
        if count:
            self._proposing = self._by_runner
        return count

    def left_at_index(self, count: int, behind: int) -> None:
        """Record `count` drafts made and kept by the runner after `behind` tokens of the answer.
        Do nothing if it makes none."""
        if self._by_runner is not None:
            self._by_runner.left_at_index(count, behind)

    def guessed(self, tokens: tuple[int, ...], behind: int) -> None:
        """Store the runner's drafts, made after `behind` tokens of the answer. Do nothing if it
        makes none."""
        if self._by_runner is not None:
            self._by_runner.guessed(tokens, behind)

    def propose(self, output: Sequence[int], most: int) -> tuple[int, ...]:
        """Return at most `most` possible next tokens of the answer, from the first source with any.
        The caller then calls verified(), unless the drafts were not used."""
        self._watched = None
        return self._propose(output, min(most, self._most))

    def watch(self, output: Sequence[int]) -> None:
        """Learn during steps without drafts if drafts would be accepted: compare a proposal with
        the answer once it has grown. Do nothing if the runner makes drafts, because only a forward
        shows its proposals."""
        if self._by_runner is not None:
            return
        if self._watched is not None:
            behind, drafts = self._watched
            if len(output) < behind + len(drafts):
                return
            sampled = output[behind : behind + len(drafts)]
            wrong = (place for place, token in enumerate(drafts) if sampled[place] != token)
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
        self.chances.looked(found=self._by_runner is not None)
        return ()

    def verified(self, drafted: int, accepted: int) -> None:
        """Record the result of the last proposal: `drafted` drafts were verified, and `accepted` of
        them are in the answer."""
        self._show(drafted, accepted)
        self.counts[self._proposing.source].add(drafted, accepted)

    def _show(self, drafted: int, held: int) -> None:
        self._proposing.verified(drafted, held)
        self.chances.verified(drafted, held)
