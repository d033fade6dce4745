"""`make bench-cache`: ours and the peers' rows side by side, as a table, JSON and a plot.

Usage: main.py [--quick] [--output FOLDER]. One process a backend, one after the other.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from peers import PEERS, CannotInstall, command
from report import markdown, plot

ROOT = Path(__file__).resolve().parents[2]


def measure(arguments: list[str]) -> dict[str, float] | str:
    """Its rows, or why there are none."""
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, env=alone)
    if done.returncode != 0:
        return f"{Path(arguments[1]).name} ended with {done.returncode}"
    rows: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer sessions and nodes")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results")
    options = parser.parse_args()
    extra = ["--quick"] if options.quick else []
    ours = str(Path(__file__).with_name("ours.py"))
    results = {"tasuki": measure([sys.executable, ours, *extra])}
    for peer in PEERS:
        try:
            arguments = command(peer, ROOT / "build" / "peers")
        except CannotInstall as reason:
            results[peer.name] = f"not installed: {reason}"
            continue
        results[peer.name] = measure([*arguments, *extra])
    options.output.mkdir(parents=True, exist_ok=True)
    kept = {
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "clock": "thread CPU time",
        "results": results,
    }
    (options.output / "cache.json").write_text(json.dumps(kept, indent=1) + "\n")
    table = markdown(results)
    (options.output / "cache.md").write_text(table)
    (options.output / "cache.svg").write_text(plot(results))
    print(table)


if __name__ == "__main__":
    main()
