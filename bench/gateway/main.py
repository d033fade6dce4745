"""`tasuki bench gateway FILE`: a shortened trace through the unmodified smg before simulated nodes.

All of it runs on this machine, over loopback, and ends by itself: what is measured shares its cores
with what measures it.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from tasuki.bench.fleet.main import ASSUMED_TFLOPS
from tasuki.bench.fleet.nodes.measured_prefills import measured
from tasuki.bench.fleet.nodes.node_model import NodeModel
from tasuki.bench.measure.host import describe_host
from tasuki.bench.replay.shortened import shortened
from tasuki.bench.replay.trace import load_trace
from tasuki.model.known_models import PUBLISHED
from tasuki.utils.flags import FlagParser

from .figures import figures
from .results import as_text, keep
from .run import run
from .settings import GatewaySettings
from .shortened_model import shortened_model
from .simulated import simulated


def main(argv: Sequence[str]) -> int:
    parser = FlagParser("tasuki bench gateway", "smg before simulated nodes.")
    add = parser.add_argument
    add("file", type=Path, help=".jsonl, .jsonl.gz or .jsonl.zst")
    add("--model", default="35b-a3b", help=f"{', '.join(PUBLISHED)} or a checkpoint folder")
    add("--nodes", type=int, default=10, help="simulated")
    add("--processes", type=int, default=10, help="that they share")
    add("--gb", type=float, default=32.0, help="of a node's cache, GiB")
    add("--streams", type=int, default=2, help="times the trace is played")
    add("--factor", type=int, default=16, help="by which lengths are divided")
    add("--seconds", type=float, default=180.0, help="of the trace")
    add("--warm-up", type=float, default=60.0, help="seconds that are not counted")
    add("--restart", type=float, default=0.0, help="seconds after which smg is killed; 0: never")
    add("--seed", type=int, default=0, help="of where streams begin")
    add("--itl-ms", type=float, default=20.0, help="of an answer's token, milliseconds")
    add("--tflops", type=float, help=f"of a prefill; default: as measured, else {ASSUMED_TFLOPS:g}")
    add("--fixed-ms", type=float, default=10.0, help="of every prefill, milliseconds")
    add("--defaults", action="store_true", help="smg's warm-up of nodes that hold little stays on")
    add("--no-simulation", action="store_true", help="without the simulator's figures beside it")
    add("--out", type=Path, help="a .json file that keeps the figures, with a table beside it")
    add("--json", action="store_true", help="one JSON object on stdout")
    values = parser.parse_args(argv)
    if values.tflops is None and measured(values.model) is None:
        values.tflops = ASSUMED_TFLOPS
    settings = GatewaySettings(
        **{field.name: getattr(values, field.name) for field in fields(GatewaySettings)}
    )
    host = describe_host(torch.device("cpu"), "")
    whole = load_trace(values.file)
    trace = shortened(whole, settings.factor, len(whole.requests), 1 << 30, 1.0)
    published = NodeModel.published(settings.model, settings.tflops, settings.fixed_ms / 1e3)
    model = shortened_model(published, settings.factor)
    row: dict[str, Any] = {"trace": whole.name, **asdict(settings)}
    with tempfile.TemporaryDirectory() as folder:
        row |= figures(run(trace, settings, model, Path(folder)), settings, model.flops)
    if not values.no_simulation:
        row["simulated"] = simulated(trace, settings, model)
    row["prefill_source"] = model.source
    if values.out is not None:
        keep(values.out, row, host)
    sys.stdout.write(json.dumps(row) + "\n" if values.json else as_text(row))
    return 0
