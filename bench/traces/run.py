"""`make bench-traces`: replay the traces under every policy; JSON, a table and a plot.

    python bench/traces/run.py --traces ../shared/traces --out docs/results

Runs in the project's own environment. A trace that is not there is named and left out. With the
simulator's program its `lru` is printed beside ours under the same rules.
"""

import argparse
import json
import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cells import CELLS, DRAFTING_POLICY, MODEL, POLICIES, Cell
from plot import bars
from simulator import simulated
from table import table

from tasuki.bench.replay.replay import replay
from tasuki.bench.replay.rules import ends_and_branches
from tasuki.bench.replay.trace import Trace, load_trace


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
        for policy in POLICIES:
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
