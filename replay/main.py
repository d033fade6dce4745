"""`tasuki replay-trace FILE`: hit rate of the tree on a trace, and why the rest was missed."""

import sys
from collections.abc import Sequence
from pathlib import Path

from ..front.flags import FlagParser
from ..pycache._cpp_cache import HybridTree, TreeConfig
from ..pycache.layout import CacheLayout
from ..model.prefill_cost import PrefillFlops
from .models import PUBLISHED, load_model
from .player import Player
from .prompts import Prompts
from .report import as_json, as_text
from .trace import load_trace

POLICIES = ("lru", "marconi", "value", "hazard", "auto")
_GIB = 1 << 30


def main(argv: Sequence[str]) -> int:
    parser = FlagParser("tasuki replay-trace", "Replay a block-hash trace through the cache.")
    parser.add_argument("file", type=Path, help=".jsonl, .jsonl.gz or .jsonl.zst")
    parser.add_argument(
        "--model", default="35b-a3b", help=f"{', '.join(PUBLISHED)} or a checkpoint folder"
    )
    parser.add_argument("--gb", type=float, default=32.0, help="bytes of the cache, GiB")
    parser.add_argument("--policy", choices=POLICIES, default="auto", help="eviction policy")
    parser.add_argument("--limit", type=int, help="requests to replay; all by default")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    values = parser.parse_args(argv)

    config = load_model(values.model)
    layout = config.cache_layout("bfloat16", "bfloat16", "float32")
    trace = load_trace(values.file, values.limit)
    prompts = Prompts(trace)
    flops = PrefillFlops.for_model(config)
    tree = HybridTree(tree_config(layout, flops, values.gb, values.policy))
    tally = Player(tree, flops).play(trace, prompts)
    render = as_json if values.json else as_text
    sys.stdout.write(render(trace, prompts, values.model, values.gb, values.policy, tally))
    return 0


def tree_config(layout: CacheLayout, flops: PrefillFlops, gib: float, policy: str) -> TreeConfig:
    slabs = max(1, int(gib * _GIB) // layout.slab_bytes)
    return TreeConfig(
        slabs=slabs,
        blocks_per_slab=layout.blocks_per_slab,
        pages_per_slab=layout.pages_per_slab,
        max_ghost_nodes=max(4096, 8 * slabs),
        policy=policy,
        attention_cost=flops.quadratic / flops.linear,
    )
