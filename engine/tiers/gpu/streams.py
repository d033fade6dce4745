"""Streams of copies between a GPU's arena and what is below it."""

import torch

from tasuki.engine.tiers.running_copy import StillMoving

LAST, FIRST = 0, -1
"""Priorities: a smaller one goes first."""


def stream_of(device: torch.device, priority: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]


def recorded() -> torch.cuda.Event:
    """Behind all that the current stream has; who waits for it sleeps."""
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def settle(stream: torch.cuda.Stream) -> None:
    """Nothing that the stream was given moves a byte any more. Raises StillMoving."""
    try:
        with torch.cuda.stream(stream):
            recorded().synchronize()
    except Exception as error:
        raise StillMoving(f"a stream of copies cannot be waited for: {error}") from error
