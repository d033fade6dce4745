"""The part of a vocabulary whose logits one rank computes."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Slice:
    """One rank's part of the vocabulary: the token ids from `first` on. gather: function that joins
    all ranks' tensors [..., columns of one rank] side by side in rank order. Every rank gets the
    same bits."""

    first: int
    gather: Callable[[Tensor], Tensor]
