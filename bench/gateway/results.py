"""Runs as a file of rows, and the same as a table beside it.

A row is kept with the machine, the commit and the versions that it was measured with; another one
of the same settings takes its place. Raises what reading and writing files does.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from tasuki.bench.measure.host import Host

from .gateway_process import versions
from .settings import GatewaySettings

_FIELDS = ("trace", *(field.name for field in fields(GatewaySettings)))
_COLUMNS = (
    *("nodes", "what else", "turns/s", "prompt tokens", "arrival p50, ms", "p99, ms"),
    *("lookup mean, ms", "p99 at most", "CPU, cores", "CPU a request, ms", "GiB", "blocks"),
    *("hit rate", "one cache", "cost", "random", "continued", "lost"),
    *("ready, s", "smg's CPU until then, s", "the nodes', s"),
    *("restart: registered, s", "index known, s", "smg's CPU until known, s", "converged, s"),
)


def keep(path: Path, row: dict[str, Any], host: Host) -> None:
    """path: of the JSON file; the table has its name and .md. host: described before the run."""
    described = asdict(host)
    described["versions"] |= versions()
    row = row | {"host": described, "load_average": round(os.getloadavg()[0], 1)}
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = [*(each for each in rows if _name(each) != _name(row)), row]
    rows.sort(key=lambda each: (each["nodes"], each["factor"], each["seconds"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"bench": "gateway", "rows": rows}, indent=1) + "\n")
    path.with_suffix(".md").write_text(_table(rows))


def as_text(row: dict[str, Any]) -> str:
    cells = zip(_COLUMNS, _cells(row), strict=True)
    return "".join(f"{name:<26}{cell}\n" for name, cell in cells)


def _name(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[field] for field in _FIELDS)


def _table(rows: list[dict[str, Any]]) -> str:
    lines = ["# smg before simulated nodes", ""]
    lines += ["By `tasuki bench gateway TRACE --out FILE`; what is simulated: docs/gateway.md.", ""]
    lines += [f"| {' | '.join(_COLUMNS)} |", "| --- " * len(_COLUMNS) + "|"]
    lines += [f"| {' | '.join(_cells(row))} |" for row in rows]
    lines += ["", *dict.fromkeys(map(_source, rows)), ""]
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> list[str]:
    gateway, restart = row["gateway"], row["restarted"] or {}
    simulated = row.get("simulated", {})

    def hit(route: str) -> str:
        return f"{simulated[route]['hit_rate']:.3f}" if route in simulated else ""

    return [
        str(row["nodes"]),
        _else(row),
        f"{row['turns_per_second']:.1f}",
        f"{row['mean_prompt_tokens']:.0f} x {row['factor']}",
        _number(row["arrival_ms"].get("p50"), 1),
        _number(row["arrival_ms"].get("p99"), 1),
        _number(gateway["lookup_ms"].get("mean"), 3),
        _number(gateway["lookup_ms"].get("p99_at_most"), 2),
        f"{gateway['cpu_cores']:.2f}",
        f"{gateway['cpu_ms_per_request']:.1f}",
        f"{gateway['memory_mib'] / 1024:.2f}",
        str(gateway["blocks"]),
        f"{row['hit_rate']:.3f}",
        *(hit("one-cache"), hit("cost"), hit("random")),
        f"{row['continued']:.3f}",
        str(row["lost_turns"]),
        f"{row['ready_seconds']:.1f}",
        f"{row['ready_cpu_seconds']:.1f}",
        f"{row['ready_nodes_cpu_seconds']:.1f}",
        _number(restart.get("registered"), 1),
        _number(restart.get("index_known"), 1),
        _number(restart.get("index_known_cpu_seconds"), 1),
        _number(restart.get("converged"), 1),
    ]


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _else(row: dict[str, Any]) -> str:
    said = [f"{row['model']}, {row['streams']} streams, {row['seconds']:g} s"]
    said += [f"the first {row['warm_up']:g} not counted", f"{row['processes']} processes"]
    if row["restarted"] is not None:
        said += ["restarted"]
    if row["defaults"]:
        said += ["smg's defaults"]
    return ", ".join(said)


def _source(row: dict[str, Any]) -> str:
    host = row["host"]
    versions_of = ", ".join(f"{name} {version}" for name, version in host["versions"].items())
    return (
        f"{host['device']}, {host['cores']} cores, {host['date']}, commit {host['commit']}; "
        f"{versions_of}."
    )
