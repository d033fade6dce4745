"""How long a node computes on a part of a prompt."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PrefillSeconds:
    """fixed: of any prefill; token: of each token; context: of a token for each token before it."""

    fixed: float
    token: float
    context: float

    def between(self, first: int, last: int) -> float:
        """Of the tokens first..last, those before them being cached."""
        return self.fixed + self.saved(last) - self.saved(first)

    def saved(self, tokens: int) -> float:
        """What a cached prefix of that many tokens saves."""
        return self.token * tokens + self.context * tokens * tokens / 2
