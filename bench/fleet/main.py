"""`tasuki simulate FILE`: a trace through a fleet of prefill nodes, in virtual time."""

import json
import math
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import get_args

import torch

from tasuki.bench.measure.host import describe_host
from tasuki.bench.replay.main import POLICIES
from tasuki.bench.replay.trace import load_trace
from tasuki.model.known_models import PUBLISHED
from tasuki.utils.config.flags import FlagParser

from .node_model import measured
from .results import as_text, keep
from .settings import FleetSettings, RouteName
from .simulate import simulate_seeds
from .workload import Arrivals

ASSUMED_TFLOPS = 300.0
"""Of a model whose prefills were not measured."""


def _positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = kind(text)
        if not 0 < value < math.inf:
            raise ArgumentTypeError(f"must be more than 0 and finite, not {text}")
        return value

    return read


def _duration(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise ArgumentTypeError(f"must be 0 or more seconds, and finite, not {text}")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ArgumentTypeError(f"is a share: must be from 0 to 1, not {text}")
    return value


def main(argv: Sequence[str]) -> int:
    parser = FlagParser("tasuki simulate", "A trace through a fleet of prefill nodes.")
    add = parser.add_argument
    add("file", type=Path, help=".jsonl, .jsonl.gz or .jsonl.zst")
    add("--model", default="35b-a3b", help=f"{', '.join(PUBLISHED)} or a checkpoint folder")
    add("--nodes", type=_positive(int), default=4, help="prefill nodes")
    add("--gb", type=_positive(float), default=32.0, help="of a node's cache, GiB")
    add("--route", choices=get_args(RouteName), default="cost", help="choice of the node")
    add("--policy", choices=POLICIES, default="value", help="eviction policy")
    add(
        "--streams",
        type=_positive(int),
        default=1,
        help="times the trace is played",
    )
    add("--arrivals", choices=get_args(Arrivals), default="recorded", help="when turns come")
    add("--seed", type=int, default=0, help="of all that is drawn")
    add("--seeds", type=_positive(int), default=1, help="as many, from --seed on: means")
    add(
        "--deciders",
        type=_positive(int),
        default=2,
        help="decode nodes that choose",
    )
    add("--seconds", type=_duration, default=1e9, help="of the trace; all by default")
    add("--warm-up", type=_duration, default=0.0, help="seconds that are not counted")
    add(
        "--tflops",
        type=_positive(float),
        help=f"of a prefill, TFLOP/s; default: as measured, else {ASSUMED_TFLOPS:g}",
    )
    add("--fixed-ms", type=_positive(float), default=10.0, help="of every prefill, milliseconds")
    add("--itl-ms", type=_positive(float), default=20.0, help="of an answer's token, milliseconds")
    add(
        "--report-seconds",
        type=_positive(float),
        default=1.0,
        help="between reports of waits",
    )
    add("--report-delay", type=_duration, default=0.0, help="seconds until a report has come")
    add("--index-seconds", type=_duration, default=0.5, help="until a change is in the index")
    add("--lost", type=_share, default=0.0, help="share of the index's messages that are lost")
    add("--dead", type=_share, default=0.0, help="share of the nodes that die halfway")
    add("--lying", type=_share, default=0.0, help="share of the nodes that list all as held")
    add("--link-gb", type=_positive(float), default=25.0, help="of a link, GB/s, for pulls")
    add("--limit", type=_positive(int), help="requests of the trace; all by default")
    add("--out", type=Path, help="a .json file that keeps the outcome, with a table beside it")
    add("--json", action="store_true", help="one JSON object on stdout")
    values = parser.parse_args(argv)
    if values.tflops is None and measured(values.model) is None:
        values.tflops = ASSUMED_TFLOPS
    asked = {field.name: getattr(values, field.name) for field in fields(FleetSettings)}
    host = describe_host(torch.device("cpu"), "")
    trace = load_trace(values.file, values.limit)
    result = simulate_seeds(trace, FleetSettings(**asked), values.seeds)
    if values.out is not None:
        keep(values.out, result, host)
    sys.stdout.write(json.dumps(result) + "\n" if values.json else as_text(result))
    return 0
