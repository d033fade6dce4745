"""What a fleet promises its callers, in seconds."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Targets:
    """first_token: from a request's arrival to its first token. per_token: the mean over a
    request's tokens after the first."""

    first_token: float = 2.0
    per_token: float = 0.1
