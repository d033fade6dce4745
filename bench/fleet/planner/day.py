"""A day of requests: it swings from night to day, wanders, and has crowds that nobody foresees.

A crowd's prompts are mostly of new conversations, of which caches hold nothing: it asks for more
prefill than its share of requests. Deterministic by its seed.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tasuki.routing.node_load import PrefillSeconds

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class DaySettings:
    """rate: mean requests a second. swing: of the rate, as a share, over a period of all seconds.
    wander: standard deviation of what comes and goes within a quarter of an hour, as a share.
    crowds: how many; crowd_rates: what each adds, in mean rates, between these two; crowd_seconds:
    how long each stays, between these two, after it came within `ramp`. new, crowd_new: shares of
    prompts of which nothing is cached. context: median of a prompt's tokens; turn: mean of its
    uncached tokens where its conversation is cached; answer: mean tokens."""

    seconds: float = 86_400.0
    rate: float = 10.0
    swing: float = 0.6
    wander: float = 0.05
    crowds: int = 2
    crowd_rates: tuple[float, float] = (0.5, 1.2)
    crowd_seconds: tuple[float, float] = (600.0, 1800.0)
    ramp: float = 45.0
    new: float = 0.5
    crowd_new: float = 0.8
    context: float = 20_000.0
    most_context: float = 64_000.0
    turn: float = 2_000.0
    answer: float = 1_500.0


@dataclass(frozen=True)
class Day:
    """came: seconds, ascending; prefill: seconds of each prompt's uncached prefill; context:
    tokens; answer: tokens. crowds: when each began."""

    came: Floats
    prefill: Floats
    context: Floats
    answer: Floats
    crowds: tuple[float, ...] = field(default=())

    @classmethod
    def drawn(cls, settings: DaySettings, prefill: PrefillSeconds, seed: int) -> "Day":
        random = np.random.default_rng(seed)
        seconds = int(settings.seconds)
        at = np.arange(seconds, dtype=np.float64)
        phase = random.uniform(0, 2 * np.pi)
        usual = settings.rate * (1 + settings.swing * np.sin(2 * np.pi * at / seconds + phase))
        usual *= np.maximum(0.2, 1 + _wandering(seconds, settings.wander, random))
        began = np.sort(random.uniform(0.05, 0.95, settings.crowds) * seconds)
        crowd = sum((_crowd(at, begin, settings, random) for begin in began), np.zeros(seconds))
        many = random.poisson(usual + crowd)
        second = np.repeat(np.arange(seconds), many)
        came = np.sort(second + random.random(len(second)))
        total = np.maximum(usual + crowd, 1e-9)
        new = (usual * settings.new + crowd * settings.crowd_new) / total
        cold = random.random(len(came)) < new[came.astype(int)]
        context = np.minimum(
            settings.context * np.exp(0.7 * random.standard_normal(len(came))),
            settings.most_context,
        )
        uncached = np.where(
            cold, context, np.minimum(context, 200 + random.exponential(settings.turn, len(came)))
        )
        answer = 1 + np.floor(random.gamma(2.0, settings.answer / 2, len(came)))
        cached = context - uncached
        work = prefill.fixed + prefill.token * uncached
        work += prefill.context * (context**2 - cached**2) / 2
        return cls(came, work, context, answer, tuple(float(begin) for begin in began))


def _wandering(seconds: int, size: float, random: np.random.Generator) -> Floats:
    """Noise that forgets itself within a quarter of an hour."""
    step = 60
    points = seconds // step + 2
    keep = np.exp(-step / 900)
    values = np.zeros(points)
    drawn = random.standard_normal(points) * size
    for n in range(1, points):
        values[n] = keep * values[n - 1] + np.sqrt(1 - keep**2) * drawn[n]
    return np.interp(np.arange(seconds), np.arange(points) * step, values)


def _crowd(at: Floats, begin: float, settings: DaySettings, random: np.random.Generator) -> Floats:
    """Requests a second that it adds: it comes within `ramp`, stays, and fades."""
    height = settings.rate * random.uniform(*settings.crowd_rates)
    stays = random.uniform(*settings.crowd_seconds)
    grown = np.clip((at - begin) / settings.ramp, 0, 1)
    faded = np.exp(-np.maximum(0, at - begin - stays) / 180)
    return np.asarray(height * grown * faded)
