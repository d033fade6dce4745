"""How likely a prompt's tokens were, as it becomes known piece by piece, and as vLLM shows it.

Owns the pieces. One event loop's thread until all have come, then any.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tasuki.engine.messages import PromptScored, Tokens
from tasuki.model.ops.sampling.params import TopLogprobs
from tasuki.server.text.tokenizer import Tokenizer

_LEAST = -9999.0


@dataclass(frozen=True)
class ScoredToken:
    """top: the likeliest in its place, with their logprobs; it need not be among them."""

    token: int
    logprob: float
    rank: int
    top: TopLogprobs


class ScoredPrompt:
    def __init__(self, tokens: Tokens) -> None:
        """tokens: the prompt."""
        self.tokens = tokens
        self._pieces: list[PromptScored] = []

    def take(self, piece: PromptScored) -> None:
        """Pieces come in order."""
        self._pieces.append(piece)

    def scored(self, top: int) -> Iterator[ScoredToken]:
        """The prompt's tokens from the second on, with so many of the likeliest at most."""
        for piece in self._pieces:
            places = range(piece.first, piece.first + len(piece))
            columns = (
                self.tokens[places.start : places.stop].tolist(),
                piece.logprobs.tolist(),
                piece.ranks.tolist(),
                piece.top_tokens[:, :top].tolist(),
                piece.top_logprobs[:, :top].tolist(),
            )
            for token, logprob, rank, tokens, logprobs in zip(*columns, strict=True):
                yield ScoredToken(token, logprob, rank, tuple(zip(tokens, logprobs, strict=True)))


def json_prompt_logprobs(
    prompt: ScoredPrompt, top: int, tokenizer: Tokenizer | None
) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: by token ids in each place, none in the first, which stands behind
    nothing."""
    return [None, *(_place(scored, tokenizer) for scored in prompt.scored(top))]


def _place(scored: ScoredToken, tokenizer: Tokenizer | None) -> dict[str, Any]:
    found = {str(scored.token): _entry(scored.token, scored.logprob, scored.rank, tokenizer)}
    for rank, (token, logprob) in enumerate(scored.top, 1):
        found.setdefault(str(token), _entry(token, logprob, rank, tokenizer))
    return found


def _entry(token: int, logprob: float, rank: int, tokenizer: Tokenizer | None) -> dict[str, Any]:
    text = "" if tokenizer is None else tokenizer.token_bytes(token).decode(errors="replace")
    # JSON has no infinity.
    return {"logprob": max(logprob, _LEAST), "rank": rank, "decoded_token": text}
