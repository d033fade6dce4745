"""The thinking budget of an answer, in the form of requests and hand-overs. Pure values."""

from dataclasses import dataclass

from tasuki.model.grammar.vocabulary import MOST_LACKING

MAX_THINKING_TOKENS = 2**31 - 1
MAX_CLOSING_TOKENS = 32


@dataclass(frozen=True)
class ThinkingBudget:
    """Budget of an answer's thought (its thinking tokens). most: largest number of tokens in the
    thought. closing: tokens forced after `most` tokens. tag: token with which the model itself
    closes a thought. opening: token with which the answer may begin a thought; None: the prompt has
    begun it.

    Raises ValueError if a field is out of its limits; its message begins with `thinking`.
    """

    most: int
    closing: tuple[int, ...]
    tag: int
    opening: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.most <= MAX_THINKING_TOKENS:
            raise ValueError(
                f"thinking must have a budget in [0, {MAX_THINKING_TOKENS}], not {self.most}"
            )
        if not 1 <= len(self.closing) <= MAX_CLOSING_TOKENS:
            raise ValueError(
                f"thinking must be closed by 1 to {MAX_CLOSING_TOKENS} tokens, not "
                f"{len(self.closing)}"
            )
        if self.tag not in self.closing:
            raise ValueError("thinking must be closed by tokens with the closing tag among them")

    @property
    def tokens(self) -> tuple[int, ...]:
        """Return all token ids in the budget's fields: closing and opening."""
        return self.closing if self.opening is None else (*self.closing, self.opening)

    @property
    def rules(self) -> range:
        """Return the range of indices, in the answer, of the tokens that the budget may change."""
        opened = 0 if self.opening is None else 1
        first = max(0, self.most - MOST_LACKING)
        return range(first, opened + self.most + len(self.closing))
