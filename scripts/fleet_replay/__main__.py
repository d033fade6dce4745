"""`python -m scripts.fleet_replay TRACE`: a shortened trace on 2 x 2 real daemons and simulated.

Each route is played on daemons of the embedded model, then by the simulator with nodes of the same
arena and of the speed that the daemons said they had. Traffic stays on loopback and ends by itself.
Exit status 0 only where no turn was lost.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tasuki.bench.measure.host import Host, describe_host
from tasuki.bench.replay.trace import load_trace, shortened

from .comparison import Asked, compare


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.fleet_replay", description=__doc__)
    add = parser.add_argument
    add("file", type=Path)
    add("--routes", nargs="+", choices=("cost", "fewest-rooms"), default=["cost", "fewest-rooms"])
    add("--turns", type=int, default=200)
    add("--factor", type=int, default=32, help="by which lengths are divided")
    add("--slower", type=float, default=0.25, help="factor of the trace's times")
    add("--answer-tokens", type=int, default=16, help="of an answer, at most")
    add("--arena-mib", type=int, default=128, help="of each daemon")
    add("--no-pulls", action="store_true", help="prefill nodes fetch nothing from decode nodes")
    add("--kill", action="store_true", help="one prefill node halfway, which then starts again")
    add("--out", type=Path, help="a .json file that gets the rows")
    values = parser.parse_args()
    host = describe_host(torch.device("cpu"), "")
    trace = shortened(
        load_trace(values.file), values.factor, values.turns, values.answer_tokens, values.slower
    )
    lost = 0
    for route in values.routes:
        asked = Asked(
            route=route,
            factor=values.factor,
            slower=values.slower,
            answer_tokens=values.answer_tokens,
            arena_mib=values.arena_mib,
            pulls=not values.no_pulls,
            kill=values.kill,
        )
        row = compare(trace, asked)
        lost += row["daemons"]["lost_turns"]
        print(_as_text(row), flush=True)
        if values.out is not None:
            _keep(values.out, row, host)
    return 1 if lost else 0


def _as_text(row: dict[str, Any]) -> str:
    daemons, simulated = row["daemons"], row["simulated"]
    killed = ", one prefill node killed halfway" if row["kill"] else ""
    pulls = "" if row["pulls"] else ", no pulls"
    return (
        f"{row['trace']} / {row['factor']}, route {row['route']}, 2 x 2 nodes of "
        f"{row['arena_mib']} MiB{pulls}{killed}: {daemons['turns']} turns, "
        f"{daemons['lost_turns']} lost\n"
        f"  FLOPs saved  daemons {daemons['flops_saved']:.4f}, simulated "
        f"{simulated['flops_saved']:.4f}: {row['points_apart']:+.1f} points\n"
        f"  hit rate     daemons {daemons['hit_rate']:.4f}, simulated "
        f"{simulated['hit_rate']:.4f}\n"
        f"  TTFT mean    daemons {daemons['ttft_mean_seconds']:.2f} s, simulated "
        f"{simulated['ttft_mean_seconds']:.2f} s\n"
        f"  computed on  {daemons['computed_on']}, {daemons['pulled_turns']} turns with a pull, "
        f"{daemons['fallbacks']} fell back"
    )


def _keep(path: Path, row: dict[str, Any], host: Host) -> None:
    """A row of the same settings is replaced."""
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    named = ("trace", "turns", *Asked.__dataclass_fields__)
    rows = [each for each in rows if any(each[name] != row[name] for name in named)]
    rows.append(row | {"host": asdict(host)})
    path.write_text(json.dumps({"bench": "fleet_replay", "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
