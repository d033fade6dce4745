"""How likely a prompt's tokens were, as it becomes known piece by piece, and as vLLM shows it.

Owns the pieces. One event loop's thread until all have come, then any.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tasuki.engine.messages import PromptScored, Submit, Tokens
from tasuki.model.ops.sampling.params import TopLogprobs
from tasuki.server.errors import InvalidField
from tasuki.server.text.tokenizer import Tokenizer

MAX_REPLY_SCORES = 1 << 20
"""Numbers of prompts' scores in one reply, about 80 MB of JSON."""

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


def check_scores(field: str, submits: Sequence[Submit], written: int) -> None:
    """Raise InvalidField where a reply would be too long.

    field: to blame. written: how often the reply holds the scores of each prompt.
    """
    numbers = sum(
        len(submit.prompt) * (submit.prompt_logprobs + 1)
        for submit in submits
        if submit.prompt_logprobs is not None
    )
    if numbers * written > MAX_REPLY_SCORES:
        raise InvalidField(
            field,
            f"would have {numbers * written} logprobs, and a reply may have {MAX_REPLY_SCORES}: "
            "ask for fewer, or send fewer prompts",
        )


def json_prompt_logprobs(
    prompt: ScoredPrompt, top: int, tokenizer: Tokenizer | None
) -> msgspec.Raw:
    """Return vLLM's `prompt_logprobs` as JSON: an object by token ids for each place, and null for
    the first, which stands behind nothing.

    Each place is written before the next is made: as objects they would take several times the
    memory.
    """
    written = bytearray(b"[null")
    for scored in prompt.scored(top):
        written += b","
        written += msgspec.json.encode(_place(scored, tokenizer))
    written += b"]"
    return msgspec.Raw(written)


def _place(scored: ScoredToken, tokenizer: Tokenizer | None) -> dict[str, Any]:
    found = {str(scored.token): _entry(scored.token, scored.logprob, scored.rank, tokenizer)}
    for rank, (token, logprob) in enumerate(scored.top, 1):
        found.setdefault(str(token), _entry(token, logprob, rank, tokenizer))
    return found


def _entry(token: int, logprob: float, rank: int, tokenizer: Tokenizer | None) -> dict[str, Any]:
    text = "" if tokenizer is None else tokenizer.token_bytes(token).decode(errors="replace")
    # JSON has no infinity.
    return {"logprob": max(logprob, _LEAST), "rank": rank, "decoded_token": text}
