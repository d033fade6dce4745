"""`tasuki replay-trace FILE`: hit rate of the tree on a trace, why the rest was missed, and what
more host memory would have saved: the trace is replayed again for each size.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tasuki.bench.errors import ReplayError
from tasuki.model.known_models import PUBLISHED
from tasuki.pycache.layout import FP8_ROWS
from tasuki.utils.config.flags import FlagParser

from .replay import CachedDtypes, as_text, replay, replay_tiers, tier_text
from .tiers import Tiers
from .trace import load_trace


def more_host(text: str) -> tuple[float, ...]:
    """`256,1024`: GiB beside those there are. Raises ReplayError naming what is wrong."""
    try:
        sizes = tuple(float(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or not all(0 < size < 1 << 20 for size in sizes):
        raise ReplayError(
            f"--more-host {text}: give sizes above 0 and below 2^20, GiB, as 256,1024"
        )
    return sizes


def with_more_host(tiers: Tiers, gib: float) -> Tiers:
    """Where there is no host memory, so much of it."""
    host, *lower = tiers.below or (0.0,)
    return Tiers(tiers.arena, (host + gib, *lower), tiers.disk_write_budget)


def what_if(
    result: dict[str, Any],
    tiers: Tiers,
    sizes: Sequence[float],
    replayed: Callable[[Tiers], dict[str, Any]],
) -> list[dict[str, float]]:
    """By size: points of prefill FLOPs and of prompt tokens that would have been saved beyond
    `result`, which is of these tiers."""
    found = []
    for gib in sizes:
        other = replayed(with_more_host(tiers, gib))
        found.append(
            {
                "more_host_gib": gib,
                "flops_points": 100 * (other["flops_saved"] - result["flops_saved"]),
                "token_points": 100 * (other["token_hit"] - result["token_hit"]),
            }
        )
    return found


def what_if_text(found: Sequence[dict[str, float]]) -> str:
    """Appended to the replay's own table."""
    return "".join(
        f"  +{each['more_host_gib']:g} GiB host would recover {each['flops_points']:.1f} points of "
        f"prefill FLOPs, {each['token_points']:.1f} of prompt tokens\n"
        for each in found
    )


POLICIES = ("lru", "marconi", "value", "auto")


def main(argv: Sequence[str]) -> int:
    parser = FlagParser("tasuki replay-trace", "Replay a block-hash trace through the cache.")
    parser.add_argument("file", type=Path, help=".jsonl, .jsonl.gz or .jsonl.zst")
    parser.add_argument(
        "--model", default="35b-a3b", help=f"{', '.join(PUBLISHED)} or a checkpoint folder"
    )
    parser.add_argument("--gb", type=float, default=32.0, help="bytes of the cache, GiB")
    parser.add_argument("--tiers", help="instead of --gb: arena, host[, disk] as 64,1024,8192, GiB")
    parser.add_argument(
        "--disk-write-budget", type=float, help="the disk's write budget, MB/s; none by default"
    )
    parser.add_argument(
        "--draft-layer",
        choices=("auto", "off"),
        default="off",
        help="auto: pages and states hold what a draft layer keeps, where the model has one",
    )
    parser.add_argument(
        "--kv-dtype", choices=("bf16", "fp8"), default="bf16", help="of keys and values in pages"
    )
    parser.add_argument(
        "--state-dtype", choices=("float32", "bf16"), default="float32", help="of recurrent states"
    )
    parser.add_argument("--policy", choices=POLICIES, default="auto", help="eviction policy")
    parser.add_argument("--limit", type=int, help="requests to replay; all by default")
    parser.add_argument(
        "--more-host", help="as 256,1024: what so many GiB more host memory would recover"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    values = parser.parse_args(argv)

    tiers = None if values.tiers is None else Tiers.parsed(values.tiers, values.disk_write_budget)
    if not 0 < values.gb < 1 << 20:
        raise ReplayError(f"--gb {values.gb:g}: give a size above 0 in GiB")
    if tiers is None and values.disk_write_budget is not None:
        raise ReplayError("--disk-write-budget is of a disk: give --tiers too, as 64,1024,8192")
    trace = load_trace(values.file, values.limit)
    kept = values.draft_layer
    names = {"bf16": "bfloat16", "fp8": FP8_ROWS, "float32": "float32"}
    dtypes = CachedDtypes(names[values.kv_dtype], names[values.state_dtype])
    more = () if values.more_host is None else more_host(values.more_host)

    def replayed(tiers: Tiers) -> dict[str, Any]:
        return replay_tiers(
            trace, values.model, tiers, values.policy, draft_layer=kept, dtypes=dtypes
        )

    if tiers is None:
        result = replay(
            trace, values.model, values.gb, values.policy, draft_layer=kept, dtypes=dtypes
        )
        text = as_text(result)
    else:
        result = replayed(tiers)
        text = as_text(result) + tier_text(result)
    if more:
        base = Tiers(values.gb, ()) if tiers is None else tiers
        result["what_if"] = what_if(result, base, more, replayed)
        text += what_if_text(result["what_if"])
    sys.stdout.write(json.dumps(result) + "\n" if values.json else text)
    return 0
