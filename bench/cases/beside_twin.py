"""A fused elementwise kernel beside its naive twin under torch.compile."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from tasuki.bench.measure.timing import Work

from .case import Case
from .stage import turns_to_overflow

_SHARE = 0.85
_MOST_TURNS = 8

Turn = tuple[Work, tuple[Tensor, ...]]
"""A call of the kernel on memory of its own, and the tensors that its twin takes for the same."""


def beside_twin(
    name: str, turn: Callable[[], Turn], twin: Callable[..., object], moved: float
) -> Case:
    """moved: bytes of a turn, read and written."""
    turns = [turn() for _ in range(turns_to_overflow(moved, most=_MOST_TURNS))]
    # As a whole or not at all: a twin in pieces would be an easy one to beat.
    fast = torch.compile(twin, dynamic=False, fullgraph=True)
    return Case(
        name,
        [work for work, _ in turns],
        bytes=moved,
        captured={"torch.compile": [partial(fast, *tensors) for _, tensors in turns]},
        share=_SHARE,
        ratios={"torch.compile": 1.0},
    )
