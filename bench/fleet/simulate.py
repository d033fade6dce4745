"""Simulations of a trace with given settings. Several seeds give mean figures and 95% intervals of
the means."""

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from random import Random
from statistics import fmean, stdev
from typing import Any

import numpy as np

from tasuki.bench.replay.replay import tree_config
from tasuki.bench.replay.trace import Trace
from tasuki.pycache._cpp_cache import PrefixCache

from .index_feed import IndexFeed
from .node_model import NodeModel
from .prefill_nodes import LoadReports, Members, PrefillServer
from .results import outcome
from .routes import (
    CostRoute,
    FewestTransfersRoute,
    LeastWaitRoute,
    Link,
    PullRoute,
    RandomRoute,
    Route,
    StickyRoute,
)
from .settings import FleetSettings
from .simulation import Simulation
from .workload import Workload


def simulate(trace: Trace, settings: FleetSettings) -> dict[str, Any]:
    """Simulate a trace and return its results. Raises ReplayError, ModelConfigError."""
    began = time.monotonic(), time.process_time()
    model = NodeModel.published(settings.model, settings.tflops, settings.fixed_ms / 1e3)
    layout, flops, seconds = model.layout, model.flops, model.seconds
    workload = Workload(
        trace, settings.streams, settings.arrivals, settings.itl_ms / 1e3, settings.seed
    )
    shared = settings.route == "one-cache"
    gib = settings.gb * settings.nodes if shared else settings.gb
    trees = [
        PrefixCache(tree_config(layout, flops, gib, settings.policy))
        for _ in range(1 if shared else settings.nodes)
    ]
    free_at = np.zeros(settings.nodes)
    servers = [
        PrefillServer(
            node,
            trees[node % len(trees)],
            workload,
            seconds,
            LoadReports(settings.report_seconds, settings.report_delay),
            free_at,
        )
        for node in range(settings.nodes)
    ]
    members = Members(servers)
    lying = _drawn(settings.lying, settings)

    def route(feed: IndexFeed | None, seed: int) -> Route:
        match settings.route:
            case "cost" | "pull" if feed is not None:
                if settings.route == "cost":
                    return CostRoute(members, workload, seconds, feed.index, seed, lying)
                link = Link.of_speed(layout, settings.link_gb)
                return PullRoute(members, workload, seconds, feed.index, link)
            case "sticky":
                return StickyRoute(members, workload, seconds)
            case "random":
                return RandomRoute(members, workload, seconds, seed)
            case "fewest-rooms":
                return FewestTransfersRoute(members, workload, seconds)
            case _:
                return LeastWaitRoute(members, workload, seconds, free_at)

    feed = None
    if settings.route in ("cost", "pull"):
        feed = IndexFeed(trees, settings.index_seconds, settings.lost, settings.seed)
    many = settings.deciders if settings.route == "cost" else 1
    deciders = [route(feed, settings.seed * 1_000_003 + number) for number in range(many)]
    simulation = Simulation(members, deciders, workload, flops, feed)
    counts = simulation.run(settings.seconds, settings.warm_up, _deaths(settings, workload))
    spent = time.monotonic() - began[0], time.process_time() - began[1]
    result = outcome(trace.name, settings, counts, spent, feed)
    return result | {"prefill_seconds": asdict(seconds), "prefill_source": model.source}


def _deaths(settings: FleetSettings, workload: Workload) -> list[tuple[float, int]]:
    """Return the virtual time and the node of each death. All nodes of the `dead` share die at the
    middle of the run; at least one node remains."""
    halfway = min(settings.seconds, workload.seconds) / 2
    return [(halfway, node) for node in _drawn(settings.dead, settings)]


def _drawn(share: float, settings: FleetSettings) -> list[int]:
    """Return the numbers of a random share of the nodes: at least one if the share is above 0, and
    never all."""
    many = max(1, round(share * settings.nodes)) if share > 0 else 0
    return Random(settings.seed).sample(range(settings.nodes), min(many, settings.nodes - 1))


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
_STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t factors of the 95% interval, by degrees of freedom from 1 on."""


def half_interval(values: Sequence[float]) -> float:
    """Return half the width of the 95% interval of the values' mean. REQUIRES: two values or
    more."""
    student = _STUDENT[min(len(values) - 1, len(_STUDENT)) - 1]
    half: float = student * stdev(values) / len(values) ** 0.5
    return half


def simulate_seeds(trace: Trace, settings: FleetSettings, seeds: int) -> dict[str, Any]:
    """Simulate `seeds` seeds from settings.seed on. Figures are means over the seeds, and counts
    are sums. `intervals` holds, by a figure's name, half of its mean's 95% interval. One seed gives
    the result of simulate(), without intervals. REQUIRES: seeds >= 1. Raises the errors of
    simulate()."""
    runs = [
        simulate(trace, replace(settings, seed=settings.seed + number)) for number in range(seeds)
    ]
    if seeds == 1:
        return runs[0]
    result = dict(runs[0])
    result |= {name: fmean(run[name] for run in runs) for name in AVERAGED}
    result |= {name: sum(run[name] for run in runs) for name in _ADDED}
    result["memory_gib"] = max(run["memory_gib"] for run in runs)
    intervals = {name: half_interval([run[name] for run in runs]) for name in AVERAGED}
    return result | {"seeds": seeds, "intervals": intervals}
