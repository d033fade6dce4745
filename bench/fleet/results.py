"""The result of a simulated fleet: JSON, text, and a file of rows with a table beside it.

A row is stored with its machine, commit and versions; a new row of the same settings replaces it.
Raises the errors of reading and writing files.
"""

import json
import resource
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from tasuki.bench.errors import ReplayError
from tasuki.bench.measure.host import Host, described
from tasuki.bench.measure.results import markdown_table, put_below_mark, read_runs, write_runs

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
    """Return the results by name. counts: sums over the counted turns. spent: seconds of wall
    clock, seconds of CPU. Shares are of prompt FLOPs and of prompt tokens. imbalance: the busiest
    node's prefill FLOPs over the nodes' mean. memory: peak of this process. Raises ReplayError if
    no turn was counted."""
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
        "ttft_p50_seconds": _at_share(ttft, 0.5),
        "ttft_p95_seconds": _at_share(ttft, 0.95),
        "ttft_p99_seconds": _at_share(ttft, 0.99),
        "imbalance": max(counts.work.values()) / mean_work if mean_work else 1.0,
        "asked_again": counts.asked_again,
        "pulled_tokens": counts.pulled_tokens,
        "snapshots": feed.snapshots if feed is not None else 0,
        "choice_cpu_p50_ms": 1e3 * _at_share(choices, 0.5),
        "choice_cpu_p99_ms": 1e3 * _at_share(choices, 0.99),
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


def _at_share(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


_COLUMNS = (
    *("route", "what else", "seeds", "FLOPs saved", "below one cache", "hit rate"),
    *("TTFT mean, s", "p95, s", "turns", "lost", "asked again"),
    *("choice p99, CPU ms", "events/s", "CPU, s", "wall, s", "GiB"),
)
_SHARED = ("trace", "model", "nodes", "gb", "streams", "arrivals", "seconds", "warm_up")
_RULES = ("policy", "tflops", "fixed_ms", "itl_ms")
_FIELDS = tuple(field.name for field in fields(FleetSettings))


def keep(path: Path, result: dict[str, Any], host: Host) -> None:
    """Store a result. path: a .json file for this result alone, or a .jsonl file with one result a
    line. A .md file of the same name gets the table. host: described before the run, because the
    source tree's commit may change meanwhile."""
    row = {"bench": "fleet"} | result | {"host": asdict(host)}
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        rows = [*(each for each in read_runs(path) if _name(each) != _name(row)), row]
        write_runs(path, rows)
    else:
        rows = [row]
        path.write_text(json.dumps(row, indent=1) + "\n")
    put_below_mark(path, tables(rows))


def _name(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return (row["trace"], row.get("seeds", 1), *(row.get(field, 0.0) for field in _FIELDS))


def tables(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return Markdown tables, one for each fleet and load. A table has a row for each route and
    other setting."""
    parts = []
    for shared in dict.fromkeys(_shared(row) for row in rows):
        of_it = [row for row in rows if _shared(row) == shared]
        table = markdown_table(_COLUMNS, (_cells(row, of_it) for row in of_it))
        sources = dict.fromkeys(described(row["host"]) for row in of_it)
        parts += [_heading(of_it[0]), "\n".join(table), ". ".join(sources) + "."]
    return "\n\n".join(parts)


def _shared(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in (*_SHARED, *_RULES))


def _heading(row: Mapping[str, Any]) -> str:
    played = "all of it" if row["seconds"] >= 1e9 else f"{row['seconds']:g} s"
    prefill = "as measured"
    if row["tflops"] is not None:
        prefill = f"{row['tflops']:g} TFLOP/s + {row['fixed_ms']:g} ms, assumed"
    return (
        f"**{row['trace']}, {row['model']}, {row['nodes']} nodes of {row['gb']:g} GiB, "
        f"{row['streams']} stream(s)**; {played}, arrivals {row['arrivals']}, the first "
        f"{row['warm_up']:g} s not counted, policy {row['policy']}, prefill "
        f"{prefill}, {row['itl_ms']:g} ms a token"
    )


def _cells(row: Mapping[str, Any], beside: Sequence[Mapping[str, Any]]) -> list[str]:
    intervals = row.get("intervals", {})

    def figure(name: str, digits: int) -> str:
        text = f"{row[name]:.{digits}f}"
        return f"{text} ± {intervals[name]:.{digits}f}" if name in intervals else text

    bound = [each for each in beside if each["route"] == "one-cache"]
    below = f"{100 * (bound[0]['flops_saved'] - row['flops_saved']):.1f}" if bound else ""
    return [
        row["route"],
        _else(row),
        str(row.get("seeds", 1)),
        figure("flops_saved", 4),
        below,
        figure("hit_rate", 4),
        figure("ttft_mean_seconds", 2),
        figure("ttft_p95_seconds", 1),
        str(row["turns"]),
        str(row["lost_turns"]),
        str(row["asked_again"]),
        f"{row['choice_cpu_p99_ms']:.2f}" if "choice_cpu_p99_ms" in row else "",
        f"{row['events_per_second']:.0f}",
        f"{row['cpu_seconds']:.0f}",
        f"{row['wall_seconds']:.0f}",
        f"{row['memory_gib']:.1f}",
    ]


def _else(row: Mapping[str, Any]) -> str:
    said = []
    if row["route"] == "cost":
        said += [f"{row['deciders']} deciders"]
        said += [f"reports each {row['report_seconds']:g} s, {row['report_delay']:g} s late"]
        said += [f"index {row['index_seconds']:g} s late"]
    if row["route"] == "pull":
        said += [f"links of {row['link_gb']:g} GB/s"]
    if row["lost"]:
        said += [f"{100 * row['lost']:g}% of messages lost, {row['snapshots']} snapshots"]
    if row["dead"]:
        said += [f"{100 * row['dead']:g}% of nodes die"]
    if row.get("lying"):
        said += [f"{100 * row['lying']:g}% of nodes list all as held"]
    return ", ".join(said)
