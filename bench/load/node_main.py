"""`python -m tasuki.bench.load.node_main ROLE OWN FLAGS -- FLAGS`: a daemon like the product's,
mostly without weights.

ROLE and the flags after `--` are those of `tasuki serve`, `prefill` and `decode`. NodeConfig has
the bench's own flags. The folder given by --model has a shape and a tokenizer, and weights if they
are read.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from tasuki.bench.load.free.model import FreeModel
from tasuki.bench.load.free.runner import FreeRunner, LayerTicks
from tasuki.bench.load.free.step_cost import StepCost
from tasuki.bench.load.free.tokens import NextToken, Repeated, next_token
from tasuki.bench.measure.rig import random_parts
from tasuki.bench.measure.scripted_drafts import Script, scripted
from tasuki.decode_node import main as decode
from tasuki.engine.assembly.parts import BuildParts, EngineParts, build_arena, build_parts
from tasuki.engine.config import EngineConfig, Role
from tasuki.engine.runner.base import Runner
from tasuki.model.families.registry import load_config
from tasuki.model.quantise.format_names import SERVED_ON_GPUS
from tasuki.prefill_node import main as prefill
from tasuki.server.daemon import fused
from tasuki.transfer.chunks.chunk import StepCounter
from tasuki.utils.flags import parse_config
from tasuki.utils.logs import Progress
from tasuki.utils.options import option

_ROLES = {"serve": fused.main, "prefill": prefill.main, "decode": decode.main}
FREE, RANDOM, READ = "free", "random", "read"


@dataclass(frozen=True)
class NodeConfig:
    weights: str = option(
        FREE, "none at all, drawn in the shape of --model, or read from it", (FREE, RANDOM, READ)
    )
    quantization: str = option("", "format of drawn weights; none: plain", ("", *SERVED_ON_GPUS))
    accept: str = option(
        "", "acceptance rates of scripted drafts of drawn weights; none: no script"
    )
    step_ms: float = option(0.0, "of any forward of the free model; 0: none takes any time")
    row_us: float = option(0.0, "more for each sequence that decodes")
    token_us: float = option(0.0, "more for each prompt token")
    answers: str = option("", "of the free model: a JSON file of token ids, which repeat")

    @property
    def cost(self) -> StepCost:
        return StepCost(self.step_ms * 1e-3, self.row_us * 1e-6, self.token_us * 1e-6)

    @property
    def build(self) -> BuildParts:
        if self.weights == READ:
            return build_parts
        return (
            partial(drawn_parts, self.quantization, self.accept)
            if self.weights == RANDOM
            else partial(free_parts, self.cost, self.next_token)
        )

    @property
    def next_token(self) -> NextToken:
        return Repeated.read(Path(self.answers)) if self.answers else next_token


def drawn_parts(
    quantization: str, accept: str, config: EngineConfig, progress: Progress, role: Role
) -> EngineParts:
    """Return all parts of an engine, with random weights. quantization: format of the weights;
    empty: plain. accept: acceptance rates of drafts, as in `Script`; empty: no script."""
    torch.set_num_threads(config.threads)
    model = load_config(config.model)
    if not accept:
        return random_parts(model, config, role, quantization)
    # The folder has no weights to find a draft layer in.
    model = replace(model, draft_layers=int(config.drafts_by_layer))
    script = Script.parse(accept, config.draft_tokens)
    return scripted(random_parts(model, config, role, quantization), config, script)


def free_parts(
    cost: StepCost, answers: NextToken, config: EngineConfig, progress: Progress, role: Role
) -> EngineParts:
    """Return all parts of an engine, with a cost-free model. cost: duration of a forward. answers:
    function returning the sampled tokens."""
    torch.set_num_threads(config.threads)
    model = load_config(config.model)
    arena = build_arena(config, model, torch.device("cpu"), role)
    runner = partial(_free_runner, cost, answers)
    return EngineParts(model, FreeModel(model, cost, answers), arena, StepCounter(), runner=runner)


def _free_runner(cost: StepCost, answers: NextToken, parts: EngineParts, hands_on: bool) -> Runner:
    ticks = None
    if hands_on:
        # Random bytes, because nothing is ever written here: over zeros, a lost layer chunk would
        # look like an arrived one of zeros.
        np.random.default_rng().random(out=parts.arena.bytes.numpy().view(np.float64))
        ticks = LayerTicks(parts.steps, len(parts.layout.layers), timed=cost.base > 0)
    return FreeRunner(parts.arena.slabs, parts.model_config.vocab, cost, ticks, answers)


def main(argv: Sequence[str]) -> int:
    role, *flags = argv
    end = flags.index("--")
    own = parse_config("node_main", "A node of a bench.", flags[:end], NodeConfig)
    return _ROLES[role](flags[end + 1 :], own.build)


if __name__ == "__main__":
    # Imported by its own name, so an engine's process can also find the function for building the
    # node.
    from tasuki.bench.load import node_main

    sys.exit(node_main.main(sys.argv[1:]))
