"""One setting under several seeds: means, and the 95% intervals of these."""

from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

from tasuki.bench.replay.trace import Trace

from .settings import FleetSettings
from .simulate import simulate

AVERAGED = (
    "flops_saved",
    "hit_rate",
    "ttft_mean_seconds",
    "ttft_p50_seconds",
    "ttft_p95_seconds",
    "ttft_p99_seconds",
    "imbalance",
    "choice_cpu_p50_ms",
    "choice_cpu_p99_ms",
    "index_checkpoints",
    "events_per_second",
)
_ADDED = (
    "turns",
    "lost_turns",
    "asked_again",
    "pulled_tokens",
    "snapshots",
    "events",
    "wall_seconds",
    "cpu_seconds",
)
STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Of the 95% interval, by degrees of freedom from 1 on."""


def simulate_seeds(trace: Trace, settings: FleetSettings, seeds: int) -> dict[str, Any]:
    """Of the seeds from settings.seed on: figures are means, counts are sums, and `intervals` has
    by figure half of its mean's 95% interval. REQUIRES: seeds >= 1. Raises as simulate() does."""
    runs = [
        simulate(trace, replace(settings, seed=settings.seed + number)) for number in range(seeds)
    ]
    if seeds == 1:
        return runs[0]
    result = dict(runs[0])
    result |= {name: fmean(run[name] for run in runs) for name in AVERAGED}
    result |= {name: sum(run[name] for run in runs) for name in _ADDED}
    result["memory_gib"] = max(run["memory_gib"] for run in runs)
    student = STUDENT[min(seeds - 1, len(STUDENT)) - 1]
    result["seeds"] = seeds
    result["intervals"] = {
        name: student * stdev(run[name] for run in runs) / seeds**0.5 for name in AVERAGED
    }
    return result
