"""An estimate of the prompt tokens that a larger arena would have saved.

Owns the last prompts' losses. A prompt whose state was evicted `slabs_since` slabs ago would have
found it in an arena larger by as much, if evictions went by age alone. The distance is that of past
traffic, so the answer is an estimate; it is at least one slab.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

_REMEMBERED = 4096
_TARGET = 0.8


@dataclass(frozen=True)
class _Prompt:
    tokens: int
    recoverable: int
    slabs: int


class WhatIf:
    def __init__(self) -> None:
        self._prompts: deque[_Prompt] = deque(maxlen=_REMEMBERED)

    def add(self, prompt_tokens: int, hit: dict[str, Any] | None) -> None:
        lost = None if hit is None else hit.get("lost")
        if hit is None or lost is None:
            self._prompts.append(_Prompt(prompt_tokens, 0, 0))
            return
        covered = min(lost["tokens"], prompt_tokens - 1)
        recoverable = max(0, covered - hit["usable_tokens"])
        slabs = max(1, math.ceil(lost["slabs_since"]))
        self._prompts.append(_Prompt(prompt_tokens, recoverable, slabs))

    def answer(self) -> dict[str, Any]:
        """curve: (slots more, prompt tokens saved), ascending. slots, points: the fewest slots that
        would save 80 % of what any number would, and the share of all prompt tokens, in percent."""
        total = sum(prompt.tokens for prompt in self._prompts)
        saved = 0
        curve: list[tuple[int, int]] = []
        for prompt in sorted(self._prompts, key=lambda prompt: prompt.slabs):
            saved += prompt.recoverable
            if prompt.recoverable:
                if curve and curve[-1][0] == prompt.slabs:
                    curve.pop()
                curve.append((prompt.slabs, saved))
        slots, tokens = next(((n, t) for n, t in curve if t >= _TARGET * saved), (0, 0))
        points = 100 * tokens / total if total else 0.0
        return {
            "slots": slots,
            "tokens": tokens,
            "points": points,
            "of_tokens": total,
            "curve": curve,
        }
