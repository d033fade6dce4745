"""Simulated days as a table: a row of each, and the means with half of their 95% intervals."""

from statistics import fmean, stdev
from typing import Any

from tasuki.bench.fleet.seeds import STUDENT

_COLUMNS = (
    *("seed", "in time", "first token", "each token", "worst 5 minutes"),
    *("node-hours", "x the oracle's", "turns", "at crowds", "role changes"),
    *("most nodes", "oracle: in time", "node-hours", "requests", "not ended"),
)


def table(result: dict[str, Any]) -> str:
    host = result["host"]
    day, targets = result["day"], result["policy"]["targets"]
    versions = ", ".join(f"{name} {version}" for name, version in host["versions"].items())
    lines = [
        "# The planner, simulated",
        "",
        "By `make bench-planner`; what is modelled: docs/planner.md. Days of "
        f"{day['seconds'] / 3600:g} hours, {day['rate']:g} requests a second in the mean, "
        f"{day['crowds']} crowds each. In time: first token within {targets['first_token']:g} s "
        f"and {targets['per_token'] * 1e3:g} ms a token.",
        "",
        f"| {' | '.join(_COLUMNS)} |",
        "| --- " * len(_COLUMNS) + "|",
        *(f"| {' | '.join(_cells(row))} |" for row in result["rows"]),
        "",
        f"In time {_mean(result, 'in_time', 5)}, node-hours {_ratio(result)} x the oracle's.",
        "",
        f"{host['device']}, {host['cores']} cores, {host['date']}, commit {host['commit']}; "
        f"{versions}.",
    ]
    return "\n".join([*lines, ""])


def _cells(row: dict[str, Any]) -> list[str]:
    planned, oracle = row["planner"], row["oracle"]
    return [
        str(row["seed"]),
        *(f"{planned[name]:.4f}" for name in ("in_time", "first_token", "per_token")),
        f"{planned['worst']:.2f}",
        f"{planned['node_hours']:.1f}",
        f"{row['node_hours_ratio']:.3f}",
        *(str(planned[n]) for n in ("turns", "at_crowds", "role_changes", "most_nodes")),
        f"{oracle['in_time']:.4f}",
        f"{oracle['node_hours']:.1f}",
        str(planned["requests"]),
        str(planned["unended"]),
    ]


def _mean(result: dict[str, Any], name: str, digits: int) -> str:
    return _with_interval([row["planner"][name] for row in result["rows"]], digits)


def _ratio(result: dict[str, Any]) -> str:
    return _with_interval([row["node_hours_ratio"] for row in result["rows"]], 3)


def _with_interval(values: list[float], digits: int) -> str:
    mean = f"{fmean(values):.{digits}f}"
    if len(values) < 2:
        return mean
    student = STUDENT[min(len(values) - 1, len(STUDENT)) - 1]
    return f"{mean} ± {student * stdev(values) / len(values) ** 0.5:.{digits}f}"
