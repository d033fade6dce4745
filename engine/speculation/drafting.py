"""How the answer of one request is drafted, and how many of its drafts held.

Owns what one request's drafts have shown so far. Thread rule: the engine loop's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate
from operator import mul
from typing import Protocol


class DraftSource(Enum):
    """What a draft was taken from. prediction: what the request said its answer would be. mtp:
    the model's own draft layer. tree: tokens that stand elsewhere behind the same ones. grammar:
    text that the answer's grammar leaves no choice of."""

    PREDICTION = "prediction"
    MTP = "mtp"
    TREE = "tree"
    GRAMMAR = "grammar"


class Drafter(Protocol):
    """What proposes the next tokens of an answer: the protocol. A draft is only a guess: every
    token of an answer is the model's own draw, whatever was proposed (engine/runner/cpu_runner.py).

    One request's. Thread rule: the engine loop's.
    """

    @property
    def source(self) -> DraftSource: ...

    def propose(self, output: Sequence[int], most: int) -> list[int]:
        """At most so many tokens that may follow the answer's so far; none where nothing is known.
        output: at each call what it was at the last one, and maybe more."""

    def verified(self, drafted: int, accepted: int) -> None:
        """So many of what was proposed last were verified, and so many of these held."""


_PRIOR_WEIGHT = 2.0
"""What others show counts as much as so many drafts ahead of the request's own, and fades too."""
_FADES = 0.8
"""What a draft counts once the next one of its place was verified; of one request."""
_FADES_TOGETHER = 0.98
_FIRST_GUESS = 0.6
"""Before anything was verified: that a try is worth its time, and a few failures end it."""


class Chances:
    """How likely drafts hold: by place, each where those before it held, newer ones counting more.

    Owns what became of the last ones. Thread rule: the engine loop's.
    """

    def __init__(self, prior: "Chances | None" = None) -> None:
        """prior: of others like it, which stand for what it has not seen yet, and learn from it."""
        self._prior = prior
        self._fades = _FADES_TOGETHER if prior is None else _FADES
        self._tried: list[float] = []
        self._held: list[float] = []
        self._found = 1.0
        self._gains: list[float] | None = None

    def verified(self, drafted: int, held: int) -> None:
        """So many drafts stood in a row, at least one, of which the first ones held."""
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
        """Drafts were looked for."""
        self._found = self._found * _FADES + found * (1 - _FADES)

    @property
    def found(self) -> float:
        """How likely there are drafts when they are looked for."""
        return self._found

    def gains(self, most: int) -> Sequence[float]:
        """How many of 1, 2, .. `most` drafts of a row hold, in the mean."""
        if self._gains is None or len(self._gains) < most:
            reached = accumulate((self._likely(place) for place in range(most)), mul)
            self._gains = list(accumulate(reached))
        return self._gains[:most]

    def _likely(self, place: int) -> float:
        if place < len(self._tried):
            return self._held[place] / self._tried[place]
        return _FIRST_GUESS if self._prior is None else self._prior._likely(place)


class MtpDrafter:
    """Drafts that the model's own draft layer made beside the forward before (model/qwen3_5.py).

    Owns the newest ones, or how many there are where a runner has them, and behind how much of the
    answer they stand. Thread rule: the engine loop's.
    """

    def __init__(self) -> None:
        self._guessed: tuple[int, ...] = ()
        self._on_lane = 0
        self._behind = 0
        """Nothing was asked for behind no token of the answer: it is drawn without a draft."""

    @property
    def source(self) -> DraftSource:
        return DraftSource.MTP

    def guessed(self, tokens: tuple[int, ...], behind: int) -> None:
        """So many tokens of the answer stand before them."""
        self._guessed, self._on_lane, self._behind = tokens, 0, behind

    def left_on_lane(self, count: int, behind: int) -> None:
        """As guessed(), of so many that the runner has."""
        self._guessed, self._on_lane, self._behind = (), count, behind

    def on_lane(self, behind: int) -> int:
        """How many the runner has of what follows so many tokens of the answer."""
        return self._on_lane if behind == self._behind else 0

    def asked(self, behind: int) -> bool:
        """Whether the layer was to propose what follows so many tokens of the answer."""
        return self._behind == behind

    def propose(self, output: Sequence[int], most: int) -> list[int]:
        return list(self._guessed[:most]) if len(output) == self._behind else []

    def verified(self, drafted: int, accepted: int) -> None:
        """The next ones come whatever became of these."""


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
    """How one request's answer is drafted, and what came of it.

    The first of the drafters that has something to propose does. Thread rule: the engine loop's.
    """

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
