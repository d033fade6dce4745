"""Which deaths a sweep tries: one for each place of the hand-over, and for each window of it.

Pure. Invariant: equal arguments give equal points.
"""

import random
from dataclasses import dataclass

from tasuki.transfer.failpoints import WINDOW_PLACES, Place


@dataclass(frozen=True)
class Point:
    """window: the sequence number at which it dies; None where the place is not one of windows."""

    place: Place
    window: int | None

    @property
    def sends(self) -> bool:
        """Whether it is the sender that dies."""
        return self.place.value.startswith("sender.")

    def __str__(self) -> str:
        return self.place.value if self.window is None else f"{self.place.value}@{self.window}"


def every_point(windows: int) -> tuple[Point, ...]:
    """Each place of a hand-over in so many windows, those of windows once for each."""
    return tuple(
        Point(place, window)
        for place in Place
        for window in (range(windows) if place in WINDOW_PLACES else (None,))
    )


def sample(windows: int, seed: int, more: int) -> tuple[Point, ...]:
    """One point of each phase of each side, and `more` of the rest, drawn from the seed."""
    rng = random.Random(seed)
    phases: dict[str, list[Point]] = {}
    for point in every_point(windows):
        phases.setdefault(_phase(point.place), []).append(point)
    chosen = [rng.choice(points) for points in phases.values()]
    rest = [point for point in every_point(windows) if point not in chosen]
    return (*chosen, *rng.sample(rest, min(more, len(rest))))


def _phase(place: Place) -> str:
    """As sender.ready, whether before or after it."""
    side, _, moment = place.value.partition(".")
    return f"{side}.{moment.partition('_')[2]}"
