"""How fast a model learns at each step of its training."""

import math


def rate(step: int, steps: int, peak: float, warm_up: int) -> float:
    """Linear warm-up, then a cosine to a hundredth."""
    warm = min(1.0, (step + 1) / warm_up)
    cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
    return float(peak * warm * (0.01 + 0.99 * cosine))
