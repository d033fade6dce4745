"""Cases of GDN prefill: one layer between its projections, over whole prompts, with states saved
inside a prompt."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from tasuki.bench.measure.timing import Work
from tasuki.model.ops.gdn.prefill import gdn_prefill
from tasuki.model.ops.gdn.prefill_plan import CHUNK, plan_gdn_prefill
from tasuki.model.weights.layers import GdnWeights

from .case import Case, Stage
from .gdn import fla_rule, gdn_weights

# (Sequences, tokens of each, states saved before the last one of each)
_SIZES = ((1, 800, 1), (1, 2048, 0), (4, 2048, 1), (1, 8192, 2), (1, 65536, 0))
# Few lengths, because fla tunes itself for each, and this takes longer than everything else here.
_COMPARED = (8192, 65536)


def cases(stage: Stage) -> Iterator[Case]:
    weights = gdn_weights(stage)
    for size in _SIZES:
        yield _prefill(stage, weights, *size)


def _prefill(stage: Stage, weights: GdnWeights, count: int, tokens: int, marks: int) -> Case:
    config, arena = stage.model, stage.arena
    values = config.value_heads * config.value_dim
    width = config.conv_channels + values + 2 * config.value_heads
    total = count * tokens
    projected = stage.random(total, width)
    # Marks are not at chunk borders, like the ends of turns.
    saves = [
        (sequence, tokens * (mark + 1) // (marks + 1) - (37 if mark < marks else 0), slot)
        for sequence in range(count)
        for mark, slot in enumerate(
            range(count + sequence * (marks + 1), count + (sequence + 1) * (marks + 1))
        )
    ]
    starts = list(range(count)), saves, [0] * count
    dtype = arena.views("ssm")[0].dtype
    plan = plan_gdn_prefill([tokens] * count, *starts, dtype, stage.device)
    state = 4 * config.value_heads * config.value_dim * config.key_dim
    dim, states = config.key_dim, (arena.views("conv")[0], arena.views("ssm")[0])
    return Case(
        f"gdn prefill, {count} x {tokens} tokens, {marks} marks each",
        [
            partial(gdn_prefill, projected, weights, config, *states, plan),
        ],
        bytes=2 * total * (width + values) + count * (marks + 2) * state,
        flops=total * config.value_heads * (6 * dim**2 + 10 * CHUNK * dim),
        captured=_fla(stage, count, tokens) if tokens in _COMPARED else {},
    )


def _fla(stage: Stage, count: int, tokens: int) -> dict[str, Sequence[Work]]:
    """Return a call of fla's chunked rule alone, if installed: without convolution, gates or norm.
    It saves only the last state."""
    rule = fla_rule(stage, "chunk_gated_delta_rule", count, tokens, torch.bfloat16)
    if rule is None:
        return {}
    heads, dim = stage.model.value_heads, stage.model.key_dim
    state = torch.zeros(count, heads, dim, dim, device=stage.device)
    return {"fla chunk": [partial(rule, initial_state=state)]}
