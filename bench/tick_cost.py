"""The cost of ticking the step counter at every layer of a prompt's forward.

The same forward with and without ticks, by turns in one run, so that a clock that drifts moves
both.
"""

from dataclasses import dataclass
from statistics import median

import torch

from tasuki.bench.measure.rig import Rig
from tasuki.bench.measure.timing import once_seconds
from tasuki.engine.runner.cuda_runner import LayerEvents
from tasuki.model.forward import Batch, LayerHooks, NullHooks, SequenceSlice
from tasuki.pycache.layout import PAGE_TOKENS

_PAIRS = 15
_WARMUPS = 2


@dataclass(frozen=True)
class TickCost:
    """Median seconds of a forward."""

    ticked: float
    plain: float


def tick_cost(rig: Rig, tokens: int) -> TickCost:
    """Of a prompt of `tokens` tokens. REQUIRES: a GPU; nothing in the arena is used or published:
    its pages are written."""
    parts = rig.parts
    layout, device = parts.arena.layout, parts.arena.bytes.device
    pages = [
        (2 + page // layout.pages_per_slab) * layout.blocks_per_slab + page % layout.pages_per_slab
        for page in range(-(-tokens // PAGE_TOKENS))
    ]
    batch = Batch.pack([SequenceSlice(rig.prompt(tokens), 0, pages, 0, 1)])

    def seconds(hooks: LayerHooks) -> float:
        return once_seconds(lambda: parts.model.forward(batch, parts.arena, hooks), device)

    ticks, none = LayerEvents(parts.steps, len(layout.layer_kinds)), NullHooks()
    with torch.inference_mode():
        pairs = [(seconds(ticks), seconds(none)) for _ in range(_WARMUPS + _PAIRS)][_WARMUPS:]
    return TickCost(*(median(times) for times in zip(*pairs, strict=True)))
