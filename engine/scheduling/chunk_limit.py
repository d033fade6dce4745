"""How many prompt tokens a forward may have beside answers, so that no answer waits too long.

Owns what the last forwards took. Thread rule: the engine loop's.
Invariant: at least a page, at most a chunk; without a limit always a chunk.
"""

from tasuki.pycache.layout import PAGE_TOKENS

from .scheduled_forward import ScheduledForward

_GROWTH = 2.0
"""The next forward has at most so many times the tokens of one that took little time."""


class ChunkLimit:
    def __init__(self, chunk: int, most_seconds: float | None) -> None:
        """chunk: prompt tokens of a forward. most_seconds: of a forward with answers; None: as long
        as it takes."""
        self._chunk = chunk
        self._most_seconds = most_seconds
        self._beside_answers = chunk if most_seconds is None else PAGE_TOKENS

    def tokens(self, *, beside_answers: bool) -> int:
        """That the next forward may have of prompts."""
        return self._beside_answers if beside_answers else self._chunk

    def landed(self, forward: ScheduledForward, seconds: float) -> None:
        """It took so long. Those without answers or without prompts show nothing."""
        if self._most_seconds is None:
            return
        prompts = sum(not item.decodes for item in forward.prompts)
        if not prompts or prompts == len(forward):
            return
        tokens = forward.prompt_tokens
        fitting = tokens * min(_GROWTH, self._most_seconds / max(seconds, 1e-9))
        # A forward with few tokens shows only that so many fit.
        if fitting < self._beside_answers or tokens >= self._beside_answers:
            pages = max(1, int(fitting) // PAGE_TOKENS)
            self._beside_answers = min(self._chunk, pages * PAGE_TOKENS)
