"""A clock that a test turns."""

from dataclasses import dataclass


@dataclass
class ManualClock:
    """now: seconds."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now
