"""Scores of prompt tokens, each given the tokens before it: logprobs, ranks and the likeliest
tokens, computed for a few rows at a time.

Only here a prompt's rows go through the head, so a long prompt's logits are never all in memory.
Pure; waits for nothing on the host.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .top_logprobs import top_logprobs

SCORED_ROWS = 32
"""Number of rows whose logits are in memory at a time."""
SCORED_LOGIT_BYTES = 32
"""Bytes of memory for one logit of a scored row, with all intermediate results."""

HeadOf = Callable[[Tensor], Tensor]
"""Function that computes logits [n, vocab], of any float type, for row numbers [n] int64 of a
forward."""


@dataclass(frozen=True)
class PromptScores:
    """Scores of n prompt tokens, in order. logprobs [n] float64: natural logarithms, under the
    model's distribution. ranks [n] int32: number of tokens at least as likely, the token itself
    included. top_tokens int32 and top_logprobs float64, both [n, k]: the likeliest tokens at each
    position, the likeliest first."""

    logprobs: NDArray[np.float64]
    ranks: NDArray[np.int32]
    top_tokens: NDArray[np.int32]
    top_logprobs: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.logprobs)

    def behind(self, count: int) -> "PromptScores":
        """Return the scores after the first `count` tokens."""
        return PromptScores(
            self.logprobs[count:],
            self.ranks[count:],
            self.top_tokens[count:],
            self.top_logprobs[count:],
        )


@dataclass(frozen=True)
class ScoredRows:
    """Prompt scores as tensors, [n] and [n, k], on the device or being copied to the host."""

    logprobs: Tensor
    ranks: Tensor
    top_tokens: Tensor
    top_logprobs: Tensor

    def read(self) -> "ScoredRows":
        """Start to copy the scores to the host. Return the copies before they are complete."""
        return ScoredRows(*(_read(part) for part in self._parts))

    def values(self) -> PromptScores:
        """Return the scores as arrays. REQUIRES: the copies to the host are complete."""
        logprobs, ranks, tokens, tops = (part.numpy() for part in self._parts)
        return PromptScores(
            logprobs.astype(np.float64),
            ranks.astype(np.int32),
            tokens.astype(np.int32),
            tops.astype(np.float64),
        )

    @property
    def _parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.logprobs, self.ranks, self.top_tokens, self.top_logprobs


def score_rows(head: HeadOf, rows: Tensor, targets: Tensor, top: int) -> ScoredRows:
    """Return the scores of prompt tokens. rows [n] int64: rows of the forward; targets [n] int64:
    id of the token after each row, on the rows' device; top: number of likeliest tokens to report
    for each. n is at least 1."""
    pieces = [
        _score(head(rows[first : first + SCORED_ROWS]), targets[first : first + SCORED_ROWS], top)
        for first in range(0, len(rows), SCORED_ROWS)
    ]
    return ScoredRows(*(torch.cat(parts) for parts in zip(*pieces, strict=True)))


def _score(logits: Tensor, targets: Tensor, top: int) -> tuple[Tensor, ...]:
    scores = logits.float()
    chosen = scores.gather(1, targets[:, None])
    logprobs = (chosen - scores.logsumexp(dim=-1, keepdim=True))[:, 0]
    ranks = (scores >= chosen).sum(dim=-1)
    if top:
        return logprobs, ranks, *top_logprobs(scores, top)
    none = scores.new_empty(len(scores), 0)
    return logprobs, ranks, none.long(), none


def _read(values: Tensor) -> Tensor:
    if values.device.type == "cpu":
        return values
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    return host
