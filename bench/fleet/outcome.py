"""What a simulated fleet did, as JSON and as a table."""

import resource
from dataclasses import asdict
from typing import Any

from tasuki.bench.replay.errors import ReplayError

from .index_feed import IndexFeed
from .settings import FleetSettings
from .simulation import Counts


def outcome(
    trace: str,
    settings: FleetSettings,
    counts: Counts,
    spent: tuple[float, float],
    feed: IndexFeed | None,
) -> dict[str, Any]:
    """spent: seconds of wall clock and of CPU. Shares are of prompt FLOPs and of prompt tokens;
    imbalance: the busiest node's prefill FLOPs over the mean's; memory: the process's most. Raises
    ReplayError where no turn was counted."""
    if not counts.turns:
        raise ReplayError(f"{trace}: no turn came in time: raise --seconds or lower --warm-up")
    ttft, choices = sorted(counts.ttft), sorted(counts.choices)
    mean_work = sum(counts.work.values()) / settings.nodes
    return {
        "trace": trace,
        **asdict(settings),
        "turns": counts.turns,
        "lost_turns": counts.arrived - counts.answered,
        "flops_saved": counts.flops_saved / counts.flops,
        "hit_rate": counts.usable_tokens / counts.prompt_tokens,
        "ttft_mean_seconds": sum(ttft) / len(ttft),
        "ttft_p50_seconds": _share(ttft, 0.5),
        "ttft_p95_seconds": _share(ttft, 0.95),
        "ttft_p99_seconds": _share(ttft, 0.99),
        "imbalance": max(counts.work.values()) / mean_work if mean_work else 1.0,
        "asked_again": counts.asked_again,
        "pulled_tokens": counts.pulled_tokens,
        "snapshots": feed.snapshots if feed is not None else 0,
        "choice_cpu_p50_ms": 1e3 * _share(choices, 0.5),
        "choice_cpu_p99_ms": 1e3 * _share(choices, 0.99),
        "index_checkpoints": len(feed.index) if feed is not None else 0,
        "events": counts.events,
        "events_per_second": counts.events / max(spent[1], 1e-9),
        "wall_seconds": spent[0],
        "cpu_seconds": spent[1],
        "memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20),
    }


def as_text(result: dict[str, Any]) -> str:
    intervals: dict[str, float] = result.get("intervals", {})

    def figure(name: str, digits: int) -> str:
        text = f"{result[name]:.{digits}f}"
        return f"{text} +- {intervals[name]:.{digits}f}" if name in intervals else text

    seeds = f", {result['seeds']} seeds: mean +- half of its 95% interval" if intervals else ""
    lines = [
        f"{result['trace']}  {result['model']}  {result['nodes']} nodes of {result['gb']:g} GiB, "
        f"{result['streams']} stream(s), arrivals {result['arrivals']}, route {result['route']}"
        f"{seeds}",
        f"  turns            {result['turns']}, those before {result['warm_up']:g} s not counted; "
        f"{result['lost_turns']} lost, {result['asked_again']} asked again",
        f"  FLOPs saved      {figure('flops_saved', 4)}",
        f"  hit rate         {figure('hit_rate', 4)}",
        f"  TTFT             mean {figure('ttft_mean_seconds', 2)} s, "
        f"p50 {figure('ttft_p50_seconds', 2)}, p95 {figure('ttft_p95_seconds', 2)}, "
        f"p99 {figure('ttft_p99_seconds', 2)}",
        f"  prefill          {result['prefill_source']}",
        f"  imbalance        {figure('imbalance', 2)}",
        f"  choice           {result['choice_cpu_p50_ms']:.2f} ms of CPU, "
        f"p99 {result['choice_cpu_p99_ms']:.2f}; "
        f"{result['index_checkpoints']:.0f} checkpoints in the index at the end",
        f"  events           {result['events']}, {result['events_per_second']:.0f} a second of "
        f"CPU; {result['wall_seconds']:.0f} s, {result['memory_gib']:.1f} GiB",
    ]
    return "\n".join(lines) + "\n"


def _share(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
