"""Part of a vocabulary with logits computed by one rank."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Slice:
    """Token ids from `first` on. gather: lays all ranks' [..., columns of one] side by side in rank
    order, with the same bits on every rank."""

    first: int
    gather: Callable[[Tensor], Tensor]
