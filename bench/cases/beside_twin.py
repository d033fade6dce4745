"""A fused elementwise kernel beside what torch.compile makes of its naive twin."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .case import Case
from .stage import turns_to_overflow

_SHARE = 0.85
_MOST_TURNS = 8


def beside_twin(
    name: str, turn: "Callable[[], partial[Any]]", twin: Callable[..., object], moved: float
) -> Case:
    """`turn` makes the kernel's call on memory of its own; `twin` takes the same arguments."""
    turns = [turn() for _ in range(turns_to_overflow(moved, most=_MOST_TURNS))]
    fast = torch.compile(twin, dynamic=False)
    return Case(
        name,
        turns,
        bytes=moved,
        captured={"torch.compile": [partial(fast, *one.args, **one.keywords) for one in turns]},
        share=_SHARE,
        ratios={"torch.compile": 1.0},
    )
