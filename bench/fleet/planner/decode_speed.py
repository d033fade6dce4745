"""How long a decode node's steps take, and what it holds: 9B on an H200, as measured.

The three steps are of docs/results/gpu_decode.md (2026-11-21, commit 94171c0): 1 x 50,000 tokens in
4.85 ms, 16 x 8,192 in 6.11 ms, 64 x 8,192 in 10.61 ms; the line goes through them.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class DecodeSpeed:
    """fixed, answer, token: seconds of a step, for each answer and each token of its context.
    memory: tokens of context that a node holds."""

    fixed: float
    answer: float
    token: float
    memory: float

    def step(self, answers: float, context: float) -> float:
        return self.fixed + self.answer * answers + self.token * context


def measured(arena_gib: float, token_bytes: float) -> DecodeSpeed:
    """token_bytes: of a token's cache."""
    return DecodeSpeed(4.610e-3, 6.511e-5, 3.497e-9, arena_gib * 2**30 / token_bytes)
