"""The duration of a forward on a simulated device: a base, and a cost for each row and each prompt
token."""

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class StepCost:
    """Terms of a forward's duration, in seconds. base: for any forward; 0: forwards take no time.
    row: for each decoding sequence. prompt_token: for each prompt token."""

    base: float = 0.0
    row: float = 0.0
    prompt_token: float = 0.0

    def of(self, rows: int, prompt_tokens: int) -> float:
        if self.base == 0.0:
            return 0.0
        return self.base + rows * self.row + prompt_tokens * self.prompt_token

    def wait(self, rows: int, prompt_tokens: int) -> None:
        """Sleep on this thread for the duration of a forward with `rows` decoding sequences and
        `prompt_tokens` tokens."""
        seconds = self.of(rows, prompt_tokens)
        if seconds:
            time.sleep(seconds)
