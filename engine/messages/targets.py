"""What an answer is wanted within."""

from .types import Message


class Targets(Message):
    """Seconds, each above 0 and finite; None: nothing is asked, or what the node's settings say.
    first_token: from arrival to the first token. per_token: the mean over the later tokens.
    answer: from arrival to the last token."""

    first_token: float | None = None
    per_token: float | None = None
    answer: float | None = None

    def or_else(self, others: "Targets") -> "Targets":
        """The others' where it has none."""
        return Targets(
            others.first_token if self.first_token is None else self.first_token,
            others.per_token if self.per_token is None else self.per_token,
            others.answer if self.answer is None else self.answer,
        )


NO_TARGETS = Targets()
