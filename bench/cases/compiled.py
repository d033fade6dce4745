"""What torch.compile makes of a kernel's naive twin: the least that a kernel must beat."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ..timing import Work


def compiled(twin: "partial[Any]", turns: int) -> dict[str, Sequence[Work]]:
    """The function of `twin` compiled for exactly its arguments' shapes, under the name that tables
    show."""
    fast = torch.compile(twin.func, dynamic=False)
    return {"torch.compile": [partial(fast, *twin.args, **twin.keywords)] * turns}
