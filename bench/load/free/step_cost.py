"""How long a forward takes on a device that is not there: a base, and a cost a row and a token."""

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class StepCost:
    """Seconds. base: of any forward; 0: none takes any time. row: of each sequence that decodes.
    prompt_token: of each token of a prompt."""

    base: float = 0.0
    row: float = 0.0
    prompt_token: float = 0.0

    def of(self, rows: int, prompt_tokens: int) -> float:
        if self.base == 0.0:
            return 0.0
        return self.base + rows * self.row + prompt_tokens * self.prompt_token

    def wait(self, rows: int, prompt_tokens: int) -> None:
        """As long as such a forward, on this thread."""
        seconds = self.of(rows, prompt_tokens)
        if seconds:
            time.sleep(seconds)
