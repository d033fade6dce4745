"""`make bench-traces`: replay the traces under every policy; a run, a page and a plot of it.

    python -m tasuki.bench.replay.developer_traces --traces ../shared/traces

A trace that is not there is named and left out. With the simulator's program its `lru` is printed
beside ours under the same rules.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .player import ends_and_branches
from .replay import replay
from .trace import Trace, load_trace


@dataclass(frozen=True)
class Cell:
    """FLOPs saved for 35B-A3B. `sglang_like`, `marconi_quoted`: peers' policies by an independent
    simulator (fixed pools 0.9, every 8192 tokens; alpha 0.5 in one budget)."""

    trace: str
    gib: int
    sglang_like: float
    marconi_quoted: float
    target: float
    stretch: float


CELLS = (
    Cell("claude_code_dev", 32, 0.102, 0.271, 0.38, 0.45),
    Cell("claude_code_dev", 128, 0.741, 0.869, 0.89, 0.91),
    Cell("mooncake_conversation_dev", 64, 0.058, 0.103, 0.13, 0.16),
    Cell("mooncake_conversation_dev", 256, 0.229, 0.224, 0.25, 0.28),
    Cell("mooncake_synthetic_dev", 64, 0.061, 0.101, 0.11, 0.20),
)
_POLICIES = ("marconi", "lru", "value", "auto")
DRAFTING_POLICY = "auto"
"""Replayed with a draft layer too."""
MODEL = "35b-a3b"


# Evicts the state whose last use is longest ago, of ends of answers and branch points.
_SIMULATED_POLICY = "c.marconi-a0"


def simulated(program: Path, trace: Path, model: str, gib: float) -> tuple[float, float]:
    """Shares of prompt tokens and of prefill FLOPs served. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "rows.json"
        command = [sys.executable, str(program), str(trace), "--model", model, "--gb", f"{gib:g}"]
        command += ["--policies", _SIMULATED_POLICY, "--json", str(found)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for _, policy, tokens, flops, _ in json.loads(found.read_text())["rows"]:
            if policy == _SIMULATED_POLICY:
                return tokens, flops
    raise LookupError(f"{program} printed no row {_SIMULATED_POLICY}: it is another simulator")


_SERIES = (
    ("sglang_like", "SGLang-like", "#b0b0b0"),
    ("marconi", "Marconi 0.5", "#7f8fa6"),
    ("lru", "lru", "#9ccc9c"),
    ("value", "value", "#4c9f70"),
    ("auto", "auto", "#1f6f4a"),
)
_WIDTH, _HEIGHT, _BASE = 760, 300, 240


def bars(rows: list[dict[str, Any]]) -> str:
    """One group of bars a cell: FLOPs saved, 0 to 1; a line marks the target."""
    cells: dict[str, dict[str, Any]] = {}
    for row in rows:
        name = f"{row['trace'].split('.')[0].replace('_dev', '')} {row['gb']:g} GB"
        cell = cells.setdefault(name, dict(row["cell"]))
        cell[row["policy"]] = row["flops_saved"]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        'font-family="sans-serif" font-size="10">'
    ]
    for index, (_, label, colour) in enumerate(_SERIES):
        key_x = 20 + 110 * index
        parts.append(f'<rect x="{key_x}" y="8" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{key_x + 14}" y="17">{label}</text>')
    for group, (name, cell) in enumerate(cells.items()):
        left = 20 + group * (_WIDTH - 40) / max(len(cells), 1)
        for index, (key, _, colour) in enumerate(_SERIES):
            height = 200 * cell.get(key, 0.0)
            x = left + 22 * index
            parts.append(
                f'<rect x="{x:.0f}" y="{_BASE - height:.1f}" width="20" height="{height:.1f}" '
                f'fill="{colour}"/>'
            )
            parts.append(f'<text x="{x:.0f}" y="{_BASE - height - 3:.1f}">{cell[key]:.2f}</text>')
        y = _BASE - 200 * cell["target"]
        parts.append(
            f'<line x1="{left:.0f}" x2="{left + 110:.0f}" y1="{y:.1f}" y2="{y:.1f}" '
            'stroke="#c0392b"/>'
        )
        parts.append(f'<text x="{left:.0f}" y="{_BASE + 16}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


_CAUSES = ("new", "never_checkpointed", "checkpoint_evicted", "kv_evicted")


def table(
    rows: list[dict[str, Any]], agreement: list[dict[str, Any]], drafting: list[dict[str, Any]]
) -> str:
    """`agreement`: shares of ours and of the simulator, under the same rules; `drafting`: rows of
    a cache that keeps a draft layer's entries."""
    by_cell: dict[tuple[str, float], dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_cell.setdefault((_name(row["trace"]), row["gb"]), {})[row["policy"]] = row
    lines = [
        "# Hit rate on traces",
        "",
        f"`make bench-traces`, {MODEL}: share of prefill FLOPs saved (of prompt tokens). Replayed "
        "through the C++ tree; the columns in brackets are another simulator's, quoted.",
        "",
        _line("trace, budget", "[SGLang-like]", "[Marconi 0.5]", *_POLICIES, "target", "stretch"),
        _line(*["---"] * (5 + len(_POLICIES))),
    ]
    for (trace, gib), policies in by_cell.items():
        cell = policies["auto"]["cell"]
        lines.append(
            _line(
                f"{trace}, {gib:g} GB",
                *(f"{cell[key]:.3f}" for key in ("sglang_like", "marconi_quoted")),
                *(_shares(policies[name]) for name in _POLICIES),
                *(f"{cell[key]:.2f}" for key in ("target", "stretch")),
            )
        )
    lines += _drafting({key: cell[DRAFTING_POLICY] for key, cell in by_cell.items()}, drafting)
    lines += ["", "Where the prompt tokens went, policy auto:", ""]
    lines += [_line("trace, budget", "usable", *_CAUSES), _line(*["---"] * (2 + len(_CAUSES)))]
    for (trace, gib), policies in by_cell.items():
        row = policies["auto"]
        shares = [f"{share:.3f}" for share in (row["token_hit"], *_of(row["causes"], _CAUSES))]
        lines.append(_line(f"{trace}, {gib:g} GB", *shares))
    lines += ["", "Requests a second, the tree's calls and their Python callers on one core:", ""]
    lines += [_line("trace, budget", *_POLICIES), _line(*["---"] * (1 + len(_POLICIES)))]
    for (trace, gib), policies in by_cell.items():
        speeds = [f"{policies[name]['requests_per_second']:.0f}" for name in _POLICIES]
        lines.append(_line(f"{trace}, {gib:g} GB", *speeds))
    lines += ["", "![FLOPs saved](traces.svg)", ""]
    return "\n".join(lines + _agreement(agreement))


def _drafting(
    without: dict[tuple[str, float], dict[str, Any]], drafting: list[dict[str, Any]]
) -> list[str]:
    """What entries of a draft layer cost in the same bytes: fewer pages and states fit."""
    if not drafting:
        return []
    lines = [
        "",
        f"`--draft-layer auto`, policy {DRAFTING_POLICY}: pages with the draft layer's entries, "
        "states with what it carries, in the same bytes.",
        "",
        _line("trace, budget", "off", "auto", "points of FLOPs"),
        _line(*["---"] * 4),
    ]
    for row in drafting:
        off = without[_name(row["trace"]), row["gb"]]
        points = 100 * (row["flops_saved"] - off["flops_saved"])
        cell = f"{_name(row['trace'])}, {row['gb']:g} GB"
        lines.append(_line(cell, _shares(off), _shares(row), f"{points:+.1f}"))
    return lines


def _agreement(agreement: list[dict[str, Any]]) -> list[str]:
    if not agreement:
        return []
    lines = [
        "An independent simulator under the same rules: states at answers' ends and branch points "
        "in whole blocks, least recently used first. FLOPs saved (of prompt tokens):",
        "",
        _line("trace, budget", "lru", "simulator"),
        _line("---", "---", "---"),
    ]
    for row in agreement:
        pairs = zip(row["flops_saved"], row["token_hit"], strict=True)
        shares = [f"{flops:.4f} ({tokens:.4f})" for flops, tokens in pairs]
        lines.append(_line(f"{_name(row['trace'])}, {row['gb']:g} GB", *shares))
    return [*lines, ""]


def _shares(row: dict[str, Any]) -> str:
    return f"{row['flops_saved']:.3f} ({row['token_hit']:.3f})"


def _of(values: dict[str, float], names: tuple[str, ...]) -> list[float]:
    return [values.get(name, 0.0) for name in names]


def _name(trace: str) -> str:
    return trace.split(".")[0]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    parser.add_argument("--simulator", type=Path, default=Path("../shared/peers/hit_rate_sim.py"))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    values = parser.parse_args()
    started = time.monotonic()
    rows: list[dict[str, Any]] = []
    agreement: list[dict[str, Any]] = []
    drafting: list[dict[str, Any]] = []
    for cell in CELLS:
        found = sorted(values.traces.glob(f"{cell.trace}.jsonl*"))
        if not found:
            print(f"{cell.trace}: not in {values.traces}, left out", file=sys.stderr)
            continue
        trace = load_trace(found[0])
        for policy in _POLICIES:
            row = replay(trace, MODEL, cell.gib, policy)
            rows.append(row | {"cell": asdict(cell)})
            print(
                f"{cell.trace} {cell.gib} GB {policy}: {row['flops_saved']:.4f} of FLOPs, "
                f"{row['requests_per_second']:.0f} requests/s",
                flush=True,
            )
        row = replay(trace, MODEL, cell.gib, DRAFTING_POLICY, draft_layer="auto")
        drafting.append(row | {"cell": asdict(cell)})
        if values.simulator.is_file():
            agreement.append(compare(cell, trace, values.simulator, found[0]))
    values.out.mkdir(parents=True, exist_ok=True)
    host = platform.processor() or platform.machine()
    result = {"host": host, "rows": rows, "agreement": agreement, "draft_layer": drafting}
    (values.out / "traces.json").write_text(json.dumps(result, indent=1) + "\n")
    (values.out / "traces.md").write_text(table(rows, agreement, drafting))
    (values.out / "traces.svg").write_text(bars(rows))
    print(f"{len(rows)} replays in {time.monotonic() - started:.0f} s -> {values.out}")
    return 0 if rows else 1


def compare(cell: Cell, trace: Trace, simulator: Path, file: Path) -> dict[str, Any]:
    ours = replay(trace, MODEL, cell.gib, "lru", ends_and_branches(trace))
    tokens, flops = simulated(simulator, file, MODEL, cell.gib)
    return {
        "trace": trace.name,
        "gb": cell.gib,
        "token_hit": [ours["token_hit"], tokens],
        "flops_saved": [ours["flops_saved"], flops],
    }


if __name__ == "__main__":
    sys.exit(main())
