"""The duration of a forward on a simulated device: a base, and a cost a row and a token."""

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class StepCost:
    """A forward's duration in seconds. base: seconds of any forward; 0: forwards take no time. row:
    seconds of each decoding sequence. prompt_token: seconds of each prompt token."""

    base: float = 0.0
    row: float = 0.0
    prompt_token: float = 0.0

    def of(self, rows: int, prompt_tokens: int) -> float:
        if self.base == 0.0:
            return 0.0
        return self.base + rows * self.row + prompt_tokens * self.prompt_token

    def wait(self, rows: int, prompt_tokens: int) -> None:
        """Wait on this thread for the duration of such a forward."""
        seconds = self.of(rows, prompt_tokens)
        if seconds:
            time.sleep(seconds)
