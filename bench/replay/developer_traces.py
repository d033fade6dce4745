"""Replays the development traces under every eviction policy, and writes a run, its page and its
plot.

    python -m tasuki.bench.replay.developer_traces --traces ../shared/traces

A missing trace is named and left out. Given the program of the independent simulator, also prints
its policy `lru` beside ours under the same rules.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from tasuki.bench.measure.host import describe_host
from tasuki.bench.measure.results import Document, RunFile, Section, markdown_table

from .player import ends_and_branches
from .replay import replay
from .trace import Trace, load_trace


@dataclass(frozen=True)
class Cell:
    """A trace and cache size, with shares of FLOPs saved for 35B-A3B. gib: size of the cache, GiB.
    `sglang_like`, `marconi_quoted`: peers' policies by an independent simulator (fixed pools 0.9,
    every 8192 tokens; alpha 0.5 in one budget). target, stretch: required share, and hoped-for
    share."""

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
"""Eviction policy replayed a second time with a draft layer."""
MODEL = "35b-a3b"
_PLACE = "trace, budget"

# Evicts the least recently used state; states are at ends of answers and branch points.
_SIMULATED_POLICY = "c.marconi-a0"


def simulated(program: Path, trace: Path, model: str, gib: float) -> tuple[float, float]:
    """Run the independent simulator on a trace. Returns the saved shares of prompt tokens and of
    prefill FLOPs. program: path of the simulator. Raises CalledProcessError, or LookupError without
    such a row."""
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
    """Draw one group of bars for each trace and cache size: the share of FLOPs saved, 0 to 1. A
    line marks the target."""
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


def describe(result: Document) -> Section:
    """Return a stored run as a page's section. The run's "rows": one for each policy.
    "draft_layer": results of a cache with a draft layer's entries. "agreement": our shares and the
    simulator's, under the same rules."""
    by_cell: dict[str, dict[str, dict[str, Any]]] = {}
    for row in result["rows"]:
        by_cell.setdefault(_cell(row), {})[row["policy"]] = row
    shares, causes, speeds = [], [], []
    for name, policies in by_cell.items():
        auto, each = policies["auto"], [policies[policy] for policy in _POLICIES]
        quoted = [f"{auto['cell'][key]:.3f}" for key in ("sglang_like", "marconi_quoted")]
        asked = [f"{auto['cell'][key]:.2f}" for key in ("target", "stretch")]
        shares.append([name, *quoted, *map(_shares, each), *asked])
        went = (auto["token_hit"], *(auto["causes"].get(cause, 0.0) for cause in _CAUSES))
        causes.append([name, *(f"{share:.3f}" for share in went)])
        speeds.append([name, *(f"{row['requests_per_second']:.0f}" for row in each)])
    peers = ("[SGLang-like]", "[Marconi 0.5]")
    lines = [
        f"`python -m tasuki.bench.replay.developer_traces`, {MODEL}: share of prefill FLOPs saved "
        "(of prompt tokens). Replayed through the C++ tree; the columns in brackets are another "
        "simulator's, quoted.",
        "",
        *markdown_table((_PLACE, *peers, *_POLICIES, "target", "stretch"), shares),
        *_drafting(by_cell, result["draft_layer"]),
        *("", "Where the prompt tokens went, policy auto:", ""),
        *markdown_table((_PLACE, "usable", *_CAUSES), causes),
        *("", "Requests a second, the tree's calls and their Python callers on one core:", ""),
        *markdown_table((_PLACE, *_POLICIES), speeds),
        *("", "![FLOPs saved](traces.svg)"),
        *_agreement(result["agreement"]),
    ]
    return Section("Hit rate on traces", "\n".join(lines))


def _drafting(
    by_cell: Mapping[str, Mapping[str, Document]], drafting: Sequence[Document]
) -> list[str]:
    """Return text with the cost of a draft layer's entries in the same bytes: fewer pages and
    states fit. by_cell: rows without the layer. drafting: rows with the layer."""
    if not drafting:
        return []
    rows = []
    for row in drafting:
        off = by_cell[_cell(row)][DRAFTING_POLICY]
        points = 100 * (row["flops_saved"] - off["flops_saved"])
        rows.append([_cell(row), _shares(off), _shares(row), f"{points:+.1f}"])
    return [
        "",
        f"`--draft-layer auto`, policy {DRAFTING_POLICY}: pages with the draft layer's entries, "
        "states with what it carries, in the same bytes.",
        "",
        *markdown_table((_PLACE, "off", "auto", "points of FLOPs"), rows),
    ]


def _agreement(agreement: Sequence[Document]) -> list[str]:
    if not agreement:
        return []
    rows = []
    for row in agreement:
        pairs = zip(row["flops_saved"], row["token_hit"], strict=True)
        rows.append([_cell(row), *(f"{flops:.4f} ({tokens:.4f})" for flops, tokens in pairs)])
    return [
        "",
        "An independent simulator under the same rules: states at answers' ends and branch points "
        "in whole blocks, least recently used first. FLOPs saved (of prompt tokens):",
        "",
        *markdown_table((_PLACE, "lru", "simulator"), rows),
    ]


def _cell(row: Document) -> str:
    return f"{row['trace'].split('.')[0]}, {row['gb']:g} GB"


def _shares(row: Document) -> str:
    return f"{row['flops_saved']:.3f} ({row['token_hit']:.3f})"


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
    if not rows:
        return 1
    host = describe_host(torch.device("cpu"), "")
    result = {"rows": rows, "agreement": agreement, "draft_layer": drafting}
    out = RunFile.of(values.out / "traces.jsonl", f"{host.date}, {host.commit}")
    out.keep({"bench": "traces", **result, "host": asdict(host)}, describe)
    out.path.with_suffix(".svg").write_text(bars(rows))
    print(f"{len(rows)} replays in {time.monotonic() - started:.0f} s -> {values.out}")
    return 0


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
