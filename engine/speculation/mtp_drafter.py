"""Drafts that the model's own draft layer made beside the forward before (model/draft_tokens.py).

Owns the newest ones, or how many there are where a runner has them, and behind how much of the
answer they stand. Thread rule: the engine loop's.
"""

from collections.abc import Sequence

from .drafter import DraftSource


class MtpDrafter:
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
