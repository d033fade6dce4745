"""`python -m tasuki.bench.fleet.planner.main --out FILE.json`: days under the planner and under the
oracle, one of each seed; a table beside the file."""

import argparse
import json
import sys
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tasuki.bench.fleet.node_model import NodeModel
from tasuki.bench.measure.host import describe_host
from tasuki.bench.measure.results import OUT, RunFile
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.routing.planner.fleet_plan import Action, plan
from tasuki.routing.planner.observation import NodeRole, Observation
from tasuki.routing.planner.policy import NodeBounds, Pace, PlanPolicy, ServiceTargets

from .day import Day, DaySettings
from .oracle import OracleDay
from .outcome import DayOutcome, describe, outcome
from .pools import DecodeSpeed, measured
from .simulated_fleet import OBSERVED_SECONDS, NodeTimes, SimulatedFleet

MODEL = "9b"
ARENA_GIB = 100.0
TARGETS = ServiceTargets(first_token=3.0, per_token=0.015, share=0.985)
POLICY = PlanPolicy(TARGETS, NodeBounds(prefill=2, decode=2, least=4, most=400), Pace())
TUNED_ON = 1
"""The seed of the day by which the policy's figures were chosen: those that count are others."""
FIRST = {NodeRole.PREFILL: 8, NodeRole.DECODE: 6}


def simulated_day(
    day: Day, speed: DecodeSpeed, times: NodeTimes, policy: PlanPolicy, seed: int
) -> DayOutcome:
    history: deque[Observation] = deque(maxlen=round(policy.pace.window / OBSERVED_SECONDS) + 1)

    def control(seen: Observation) -> tuple[Action, ...]:
        history.append(seen)
        return plan(list(history), policy).actions

    counts = SimulatedFleet(day, speed, times, FIRST, seed).run(control)
    return outcome(day, counts, policy.targets)


def both(settings: DaySettings, known: Mapping[int, dict[str, Any]], seed: int) -> dict[str, Any]:
    """A day under each. known: by seed, what the oracle was found to come to."""
    model = NodeModel.published(MODEL, None, 0.0)
    speed = measured(ARENA_GIB, model.layout.page_bytes / PAGE_TOKENS)
    day, times = Day.drawn(settings, model.seconds, seed), NodeTimes()
    if seed in known:
        best = DayOutcome(**known[seed])
    else:
        search = OracleDay(day, speed, times, TARGETS)
        _, best = search.cheapest(lambda line: print(seed, line, flush=True))
    planned = simulated_day(day, speed, times, POLICY, seed)
    ratio = planned.node_hours / best.node_hours
    print(f"seed {seed}: in time {planned.in_time:.4f}, {ratio:.3f} x the oracle's node-hours")
    sys.stdout.flush()
    return {
        "seed": seed,
        "planner": asdict(planned),
        "oracle": asdict(best),
        "node_hours_ratio": ratio,
        "crowds": day.crowds,
    }


def _known(file: Path | None, settings: DaySettings) -> dict[int, dict[str, Any]]:
    """Raises ValueError where its days are others."""
    if file is None:
        return {}
    text = file.read_text()
    result = json.loads(text if file.suffix == ".json" else text.splitlines()[-1])
    if result["day"] != json.loads(json.dumps(asdict(settings))):
        raise ValueError(f"{file} is of other days: leave --oracle-of out")
    return {row["seed"]: row["oracle"] for row in result["rows"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, help=OUT)
    parser.add_argument("--seeds", type=int, default=5, help="days, behind TUNED_ON")
    parser.add_argument("--hours", type=float, default=24.0, help="of a day")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--oracle-of", type=Path, help="a file of the same days: the oracle is not searched anew"
    )
    values = parser.parse_args()
    host = describe_host(torch.device("cpu"), "")
    settings = replace(DaySettings(), seconds=values.hours * 3600)
    seeds = range(TUNED_ON + 1, TUNED_ON + 1 + values.seeds)
    with ProcessPoolExecutor(values.processes) as pool:
        rows = list(pool.map(partial(both, settings, _known(values.oracle_of, settings)), seeds))
    result = {
        "bench": "planner",
        "host": asdict(host),
        "day": asdict(settings),
        "policy": asdict(POLICY),
        "node_times": asdict(NodeTimes()),
        "rows": rows,
    }
    RunFile.of(values.out, f"{host.date}, {host.commit}").keep(result, describe)
    return 0


if __name__ == "__main__":
    sys.exit(main())
