"""`make bench-traces`: replay the traces under every policy; JSON, a table and a plot.

    python bench/traces/run.py --traces ../shared/traces --out docs/results

Runs in the project's own environment. A trace that is not there is named and left out.
"""

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

from cells import CELLS, MODEL, POLICIES
from plot import bars
from tasuki.replay.replay import replay
from tasuki.replay.trace import load_trace


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    values = parser.parse_args()
    started = time.monotonic()
    rows: list[dict[str, Any]] = []
    for cell in CELLS:
        found = sorted(values.traces.glob(f"{cell.trace}.jsonl*"))
        if not found:
            print(f"{cell.trace}: not in {values.traces}, left out", file=sys.stderr)
            continue
        trace = load_trace(found[0])
        for policy in POLICIES:
            row = replay(trace, MODEL, cell.gib, policy) | {
                "sglang_like": cell.sglang_like,
                "marconi": cell.marconi,
                "target": cell.target,
                "stretch": cell.stretch,
            }
            rows.append(row)
            print(f"{cell.trace} {cell.gib} GB {policy}: {row['flops_saved']:.4f}", flush=True)
    values.out.mkdir(parents=True, exist_ok=True)
    result = {"host": platform.processor() or platform.machine(), "rows": rows}
    (values.out / "traces.json").write_text(json.dumps(result, indent=1) + "\n")
    (values.out / "traces.md").write_text(table(rows))
    (values.out / "traces.svg").write_text(bars(rows))
    print(f"{len(rows)} replays in {time.monotonic() - started:.0f} s -> {values.out}")
    return 0 if rows else 1


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# Hit rate on traces",
        "",
        f"`make bench-traces`, {MODEL}: share of prefill FLOPs saved (of prompt tokens). The "
        "columns SGLang-like and Marconi 0.5 are another simulator's, quoted and not run here; "
        "all else was replayed through the C++ tree.",
        "",
        "| trace, budget | SGLang-like | Marconi 0.5 | lru | value | auto | target | stretch |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    by_cell: dict[tuple[str, float], dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_cell.setdefault((row["trace"], row["gb"]), {})[row["policy"]] = row
    for (trace, gib), policies in by_cell.items():
        first = policies["lru"]
        cells = [
            f"{policies[name]['flops_saved']:.3f} ({policies[name]['token_hit']:.3f})"
            for name in POLICIES
        ]
        lines.append(
            f"| {trace.split('.')[0]}, {gib:g} GB | {first['sglang_like']:.3f} | "
            f"{first['marconi']:.3f} | {' | '.join(cells)} | {first['target']:.2f} | "
            f"{first['stretch']:.2f} |"
        )
    lines += [
        "",
        "Where the prompt tokens went, policy auto:",
        "",
        "| trace, budget | usable | new | never_checkpointed | checkpoint_evicted | kv_evicted | "
        "requests/s |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (trace, gib), policies in by_cell.items():
        row = policies["auto"]
        causes = row["causes"]
        names = ("new", "never_checkpointed", "checkpoint_evicted", "kv_evicted")
        shares = " | ".join(f"{causes[name]:.3f}" for name in names)
        lines.append(
            f"| {trace.split('.')[0]}, {gib:g} GB | {row['token_hit']:.3f} | {shares} | "
            f"{row['requests_per_second']:.0f} |"
        )
    lines += ["", "![FLOPs saved](traces.svg)", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
