"""`tasuki simulate FILE`: replays a trace through a fleet of prefill nodes, in virtual time."""

import json
import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from tasuki.bench.measure.host import describe_host
from tasuki.bench.replay.trace import load_trace
from tasuki.utils.flags import FlagParser

from .node_model import measured
from .results import as_text, keep
from .settings import ASSUMED_TFLOPS, FleetSettings
from .simulate import simulate_seeds


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ArgumentTypeError(f"must be more than 0 and finite, not {text}")
    return value


def main(argv: Sequence[str]) -> int:
    parser = FlagParser("tasuki simulate", "A trace through a fleet of prefill nodes.")
    parser.add_argument("file", type=Path, help=".jsonl, .jsonl.gz or .jsonl.zst")
    parser.add_config(FleetSettings)
    parser.add_argument(
        "--seeds",
        type=_count,
        default=1,
        metavar="N",
        help="number of seeds from --seed on; the result is their mean",
    )
    parser.add_argument(
        "--limit", type=_count, metavar="N", help="requests of the trace; all by default"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="a .json or .jsonl file for the result, with a table beside it",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    values = parser.parse_args(argv)
    settings = parser.build(FleetSettings, values)
    try:
        settings.check()
    except ValueError as error:
        parser.error(str(error))
    if settings.tflops is None and measured(settings.model) is None:
        settings = replace(settings, tflops=ASSUMED_TFLOPS)
    host = describe_host(torch.device("cpu"), "")
    trace = load_trace(values.file, values.limit)
    result = simulate_seeds(trace, settings, values.seeds)
    if values.out is not None:
        keep(values.out, result, host)
    sys.stdout.write(json.dumps(result) + "\n" if values.json else as_text(result))
    return 0
