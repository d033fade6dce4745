"""`tasuki replay-trace FILE`: hit rate of the prefix tree on a trace, the miss reasons, and the
gain of more host memory. The trace is replayed again for each size of host memory."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tasuki.bench.errors import ReplayError
from tasuki.model.families.registry import published_names
from tasuki.pycache.parts import FP8_ROWS
from tasuki.utils.flags import FlagParser
from tasuki.utils.options import option

from .replay import CachedDtypes, as_text, replay_tiers, tier_text
from .tiers import Tiers
from .trace import load_trace


def more_host(text: str) -> tuple[float, ...]:
    """Parse sizes like `256,1024`: GiB in addition to the current host memory. Raises ReplayError
    naming the fault."""
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
    """Return the tiers with `gib` GiB more host memory. Without a host tier, add one of this
    size."""
    host, *lower = tiers.below or (0.0,)
    return Tiers(tiers.arena, (host + gib, *lower), tiers.disk_write_budget)


def what_if(
    result: dict[str, Any],
    tiers: Tiers,
    sizes: Sequence[float],
    replayed: Callable[[Tiers], dict[str, Any]],
) -> list[dict[str, float]]:
    """Return, for each size of additional host memory, the additional saving over `result`. The
    saving is in percentage points of prefill FLOPs and of prompt tokens. result: outcome with
    `tiers`. replayed: replays the trace with other tiers."""
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
    """Return text lines with the gains of more host memory, to append to the replay's own table."""
    return "".join(
        f"  +{each['more_host_gib']:g} GiB host would recover {each['flops_points']:.1f} points of "
        f"prefill FLOPs, {each['token_points']:.1f} of prompt tokens\n"
        for each in found
    )


POLICIES = ("lru", "marconi", "value", "auto")


@dataclass(frozen=True)
class ReplayConfig:
    model: str = option("35b-a3b", f"{', '.join(published_names())} or a checkpoint folder")
    gb: float = option(32.0, "size of the cache")
    tiers: str | None = option(None, "instead of --gb: arena, host[, disk] as 64,1024,8192, GiB")
    disk_write_budget: float | None = option(None, "the disk's write budget, MB/s; none by default")
    draft_layer: str = option(
        "off",
        "auto: pages and states with draft layer entries, if the model has the layer",
        ("auto", "off"),
    )
    kv_dtype: str = option("bf16", "dtype of keys and values in pages", ("bf16", "fp8"))
    state_dtype: str = option("float32", "dtype of recurrent states", ("float32", "bf16"))
    policy: str = option("auto", "eviction policy", POLICIES)
    limit: int | None = option(None, "requests to replay; all by default")
    more_host: str | None = option(
        None, "more host memory: recovered hits of each size", unit="GIB,..."
    )
    json: bool = option(False, "one JSON object on stdout")


def main(argv: Sequence[str]) -> int:
    parser = FlagParser("tasuki replay-trace", "Replay a block-hash trace through the cache.")
    parser.add_argument("file", type=Path, help=".jsonl, .jsonl.gz or .jsonl.zst")
    parser.add_config(ReplayConfig)
    values = parser.parse_args(argv)
    asked = parser.build(ReplayConfig, values)
    if not 0 < asked.gb < 1 << 20:
        raise ReplayError(f"--gb {asked.gb:g}: give a size above 0 in GiB")
    tiers = Tiers(asked.gb, ())
    if asked.tiers is not None:
        tiers = Tiers.parsed(asked.tiers, asked.disk_write_budget)
    elif asked.disk_write_budget is not None:
        raise ReplayError("--disk-write-budget is of a disk: give --tiers too, as 64,1024,8192")
    trace = load_trace(values.file, asked.limit)
    names = {"bf16": "bfloat16", "fp8": FP8_ROWS, "float32": "float32"}
    dtypes = CachedDtypes(names[asked.kv_dtype], names[asked.state_dtype])
    more = () if asked.more_host is None else more_host(asked.more_host)
    replayed = partial(
        replay_tiers,
        trace,
        asked.model,
        policy=asked.policy,
        draft_layer=asked.draft_layer,
        dtypes=dtypes,
    )
    result = replayed(tiers)
    text = as_text(result) + (tier_text(result) if tiers.below else "")
    if more:
        result["what_if"] = what_if(result, tiers, more, replayed)
        text += what_if_text(result["what_if"])
    sys.stdout.write(json.dumps(result) + "\n" if asked.json else text)
    return 0
