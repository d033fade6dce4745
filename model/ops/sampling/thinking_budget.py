"""The thinking budget of an answer, as requests and hand-overs carry it. Pure values."""

from dataclasses import dataclass

from tasuki.model.grammar.vocabulary import MOST_LACKING

MAX_THINKING_TOKENS = 2**31 - 1
MAX_CLOSING_TOKENS = 32


@dataclass(frozen=True)
class ThinkingBudget:
    """Budget of an answer's thought. most: tokens of the thought. closing: tokens forced after
    `most` tokens. tag: the model's own closing token of a thought. opening: optional first token of
    the thought; None: the prompt has begun it.

    Raises ValueError; its message begins with `thinking`.
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
        """Return the token ids in its fields."""
        return self.closing if self.opening is None else (*self.closing, self.opening)

    @property
    def rules(self) -> range:
        """Return the numbers of the answer's tokens with a possible change of the sampled token."""
        opened = 0 if self.opening is None else 1
        first = max(0, self.most - MOST_LACKING)
        return range(first, opened + self.most + len(self.closing))
